"""Which checkpoint is the newest whole one; nothing is written or unpickled here. Standard library only.

Read `trainwarden.checkpoints.newest` first.
"""
