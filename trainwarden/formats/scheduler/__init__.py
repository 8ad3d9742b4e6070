"""Formats of Slurm's tables.

Read `trainwarden.formats.scheduler.slurm` first.
"""
