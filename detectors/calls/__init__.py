"""Joins collective calls over the ranks of a job: each rank's wait and each link's speed.

Read `trainwarden.detectors.calls.joined` first.
"""
