"""Ends of training processes.

Read `collectors.processes.collector` first.
"""
