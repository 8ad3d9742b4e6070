"""The Slurm launcher: jobs that Slurm has started, requeued, stopped, and taken off nodes that are at fault.

Read `actions.launchers.slurm.client` first.
"""
