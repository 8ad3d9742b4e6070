"""Nodes over many jobs: their state, and what each was blamed for.

Read `trainwarden.actions.nodes.past` first.
"""
