"""Explains one incident in plain words: what, where, why, and what to do next.

Read `trainwarden.dashboards.explain.explanation` first.
"""
