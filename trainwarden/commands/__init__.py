"""People's words to the engine.

Read `trainwarden.commands.words` first; `trainwarden.commands.trust` says whose words count.
"""
