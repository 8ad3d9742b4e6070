"""Metrics of the host and of the ranks' processes on it.

Read `trainwarden.collectors.host.collector` first.
"""
