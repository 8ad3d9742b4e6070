"""A recorded folder judged by the path that judges live jobs.

Read `detectors.recorded.replay` first.
"""
