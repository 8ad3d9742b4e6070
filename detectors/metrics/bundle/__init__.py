"""What training leaves behind: prepared views, members, their calibration and their weighted mean.

Read `trainwarden.detectors.metrics.bundle.metric_vote` first.
"""
