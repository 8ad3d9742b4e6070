"""The node agent: runs the collectors, validates their records and delivers them to the bus.

Read `collectors.agent.agent` first.
"""
