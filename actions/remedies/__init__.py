"""Chooses the next action for an incident from the table of remedies.

Read `actions.remedies.planner` first.
"""
