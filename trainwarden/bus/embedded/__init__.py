"""The embedded bus: one SQLite file shared by the processes of one machine.

Read `trainwarden.bus.embedded.engine` first.
"""
