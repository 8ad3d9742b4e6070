"""Contract checks for detectors, as plain functions that a plug-in's own test calls.

Read `detectors.testing.checks` first.
"""
