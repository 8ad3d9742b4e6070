"""How the job's ranks are laid out, from settings, the training command and the hook's report of process groups.

Read `trainwarden.collectors.parallel_layout.collector` first.
"""
