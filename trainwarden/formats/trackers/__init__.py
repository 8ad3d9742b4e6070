"""Formats of experiment trackers.

Read `trainwarden.formats.trackers.records` first.
"""
