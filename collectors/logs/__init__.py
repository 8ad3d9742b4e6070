"""Log lines: followed through rotation, truncation and floods.

Read `collectors.logs.collector` first.
"""
