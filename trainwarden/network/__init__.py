"""How programs that are reached over a network are named: hosts and ports.

Read `trainwarden.network.host_port` first.
"""
