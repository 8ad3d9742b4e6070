"""Votes of trained models on the metrics of nodes and devices.

Read `trainwarden.detectors.metrics.vote` first.
"""
