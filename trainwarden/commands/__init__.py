"""Commands of operators to the engine: stop, approve, silence, cordon; signed and checked.

Read `trainwarden.commands.builders` first; `trainwarden.commands.trust` says whose words count.
"""
