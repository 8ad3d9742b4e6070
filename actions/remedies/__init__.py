"""Chooses the next action for an incident from the table of remedies.

Read `trainwarden.actions.remedies.planner` first.
"""
