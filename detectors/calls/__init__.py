"""Collective calls of all ranks of a job, put together: how long each waited, and how fast the links were.

Read `detectors.calls.joined` first.
"""
