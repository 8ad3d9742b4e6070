"""The node agent: whose turn it is, what is let through, and the way to the bus.

Read `collectors.agent.agent` first.
"""
