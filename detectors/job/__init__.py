"""What is known of one job: its steps, ranks and metric samples in arrays, and the window that detectors score.

Read `detectors.job.window` first.
"""
