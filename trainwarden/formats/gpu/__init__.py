"""Formats of what tools of GPUs print.

Read `trainwarden.formats.gpu.monitors` first.
"""
