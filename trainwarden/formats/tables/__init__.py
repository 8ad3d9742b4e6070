"""Formats of tables that any tool may have written.

Read `trainwarden.formats.tables.plain` first.
"""
