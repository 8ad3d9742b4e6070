"""Histories drawn from a seed: whatever can be killed, late, lost or doubled, and what has to hold all the same.

Read `tests.chaos.history` first: what happened, and the rules that no history may break.
"""
