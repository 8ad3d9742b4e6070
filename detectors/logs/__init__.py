"""Judges log lines: rules for single lines, floods, and templates that are new.

Read `trainwarden.detectors.logs.log_window` first.
"""
