"""Suspects of a job that no validation has cleared or confirmed, for launchers that restart its ranks.

Read `trainwarden.actions.suspicions.on_bus` first.
"""
