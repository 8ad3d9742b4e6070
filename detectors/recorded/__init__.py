"""Judges a recorded folder by the path that judges live jobs.

Read `detectors.recorded.replay` first.
"""
