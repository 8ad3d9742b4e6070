"""Ranks that start from a process which has imported their modules before: a fork instead of seconds of imports.

Read `trainwarden.actions.launchers.preload.fork_server` first.
"""
