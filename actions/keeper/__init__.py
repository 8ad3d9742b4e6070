"""The keeper: one service a node, which copies checkpoints in memory to the next node and to the store.

Read `trainwarden.actions.keeper.keeper` first.
"""
