"""The local launcher: ranks of one machine, started, watched and restarted in place.

Read `actions.launchers.local.coordinator` first.
"""
