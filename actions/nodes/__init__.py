"""Nodes over many jobs: what each was blamed for, and what state it is in.

Read `actions.nodes.past` first.
"""
