"""The local launcher: ranks of one machine, started, watched and restarted in place.

Read `trainwarden.actions.launchers.local.coordinator` first.
"""
