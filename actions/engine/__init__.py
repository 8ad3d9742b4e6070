"""Turns incidents and commands into actions, and guards every call of a launcher.

Read `trainwarden.actions.engine.handler` first.
"""
