"""Which checkpoint a restarted job goes on from, and whether it did; nothing is written or unpickled here.

Read `trainwarden.actions.launchers.checkpoints.resumption` first.
"""
