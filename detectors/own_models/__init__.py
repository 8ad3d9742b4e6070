"""Models learned from a job's own healthy start, used until trained ones exist.

Read `trainwarden.detectors.own_models.own_models` first.
"""
