"""Incidents in, actions out: memory, the table of remedies, brakes, and the calls of launchers.

Read `actions.engine.handler` first.
"""
