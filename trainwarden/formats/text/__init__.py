"""Formats of plain text that people read: logs of programs, launchers and kernels.

Read `trainwarden.formats.text.log_text` first.
"""
