"""Models that a job teaches by its own healthy start, until trained ones are there.

Read `detectors.own_models.own_models` first.
"""
