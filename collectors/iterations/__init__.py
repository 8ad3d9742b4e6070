"""Training iterations from the hook's files.

Read `trainwarden.collectors.iterations.collector` first.
"""
