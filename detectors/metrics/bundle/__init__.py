"""What training leaves behind: prepared views, members, their calibration and their weighted mean.

Read `detectors.metrics.bundle.metric_vote` first.
"""
