"""Votes of trained models on the metrics of nodes and devices.

Read `detectors.metrics.vote` first.
"""
