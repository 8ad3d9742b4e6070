"""Who leads a job that runs on several nodes: leases, who holds one, and whom a node obeys.

Read `actions.launchers.leases.table` first.
"""
