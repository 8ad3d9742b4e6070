"""Formats of what a host tells of its own disks.

Read `trainwarden.formats.host.disks` first.
"""
