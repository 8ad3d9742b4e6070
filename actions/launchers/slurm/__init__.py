"""The Slurm launcher: jobs that Slurm has started, requeued, stopped, and taken off nodes that are at fault.

Read `trainwarden.actions.launchers.slurm.client` first.
"""
