"""Judges devices by their own metrics without a trained model: known limits and comparison with peers.

Read `detectors.devices.device_limits` first.
"""
