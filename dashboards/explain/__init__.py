"""One incident in plain words: what, where, why this and not that, and what to do next.

Read `dashboards.explain.explanation` first.
"""
