"""Commands of operators to the engine: stop, approve, silence, cordon; signed and checked.

Read `trainwarden.commands.words` first; `trainwarden.commands.trust` says whose words count.
"""
