"""Judges a recorded folder by the path that judges live jobs.

Read `trainwarden.detectors.recorded.replay` first.
"""
