"""Incidents in, actions out: memory, policy, brakes, and the calls of launchers.

Read `actions.engine.handler` first.
"""
