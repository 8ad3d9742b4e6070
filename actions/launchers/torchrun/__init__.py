"""The launcher of jobs that people start with torchrun: a rendezvous service, and the engine's way to it.

Read `trainwarden.actions.launchers.torchrun.table` first.
"""
