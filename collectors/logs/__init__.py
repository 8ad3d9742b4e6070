"""Log lines: followed through rotation, truncation and floods.

Read `trainwarden.collectors.logs.collector` first.
"""
