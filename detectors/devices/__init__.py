"""Judges devices by their own metrics without a trained model: known limits and comparison with peers.

Read `trainwarden.detectors.devices.device_limits` first.
"""
