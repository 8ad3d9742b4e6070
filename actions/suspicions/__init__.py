"""Suspects of a job whom no validation has cleared or confirmed, for launchers that are about to start its ranks again.

Read `actions.suspicions.on_bus` first.
"""
