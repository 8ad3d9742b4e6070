"""State of one job: steps, ranks and metric samples in arrays, and the window that detectors score.

Read `trainwarden.detectors.job.window` first.
"""
