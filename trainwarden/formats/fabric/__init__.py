"""Formats of tools of networks.

Read `trainwarden.formats.fabric.ports` first.
"""
