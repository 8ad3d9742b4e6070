"""Devices judged by their own metrics, without a trained model: against known limits, and against their peers.

Read `detectors.devices.device_limits` first.
"""
