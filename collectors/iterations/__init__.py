"""Training iterations from the hook's files.

Read `collectors.iterations.collector` first.
"""
