"""Unicron's coordinator: nodes go from job to job, as the planner of `plan cluster` has it, whenever something changes.

Read `trainwarden.actions.coordinator.reallocation` first.
"""
