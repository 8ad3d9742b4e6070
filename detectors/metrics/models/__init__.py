"""Models of normal behaviour as pure array code: fit on normal rows, score without side effects, state as plain arrays.

Read `detectors.metrics.models.rows` first.
"""
