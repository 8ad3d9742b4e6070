"""Contract checks for detectors, as plain functions that a plug-in's own test calls.

Read `trainwarden.detectors.testing.checks` first.
"""
