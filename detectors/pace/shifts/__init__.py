"""Level shifts of many series at once: where one might be, whether it is real, which step is told as its onset.

Read `trainwarden.detectors.pace.shifts.level_shifts` first.
"""
