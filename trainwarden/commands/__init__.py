"""People's words to the engine.

Read `trainwarden.commands.words` first.
"""
