"""The host, and how its ranks fare on it.

Read `collectors.host.collector` first.
"""
