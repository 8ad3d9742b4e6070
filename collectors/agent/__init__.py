"""The node agent: runs the collectors, validates their records and delivers them to the bus.

Read `trainwarden.collectors.agent.agent` first.
"""
