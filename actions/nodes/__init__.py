"""Nodes over many jobs: their state, and what each was blamed for.

Read `actions.nodes.past` first.
"""
