"""Recorded folders: their tables, logs and files, read and written.

Read `trainwarden.recorded.folder` first.
"""
