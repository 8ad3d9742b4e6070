"""Ends of training processes.

Read `trainwarden.collectors.processes.collector` first.
"""
