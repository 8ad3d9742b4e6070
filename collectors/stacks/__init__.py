"""Where the code of a rank stands while nobody moves.

Read `collectors.stacks.collector` first.
"""
