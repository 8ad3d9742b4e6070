"""Formats of what a host tells of its own processors, memory, disks and PCIe devices.

Read `trainwarden.formats.host.disks` first.
"""
