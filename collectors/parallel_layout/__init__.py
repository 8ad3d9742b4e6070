"""How the job's ranks are laid out: by settings, the training command and the hook's word of process groups.

Read `collectors.parallel_layout.collector` first.
"""
