"""Ranks that train together in make-believe: when each comes to its collective calls, and how long these take.

Read `tests.simulated_ranks.steps` first.
"""
