"""Metrics of the host and of the ranks' processes on it.

Read `collectors.host.collector` first.
"""
