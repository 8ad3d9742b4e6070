"""Names of hosts and ports.

Read `trainwarden.network.host_port` first.
"""
