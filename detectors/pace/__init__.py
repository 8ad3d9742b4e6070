"""Iteration times: change points, thresholds on running steps, and hangs.

Read `trainwarden.detectors.pace.change_point` first.
"""
