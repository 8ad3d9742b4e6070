"""Iteration times: change points, thresholds on running steps, and hangs.

Read `detectors.pace.change_point` first.
"""
