"""Formats of what PyTorch and NCCL dump.

Read `trainwarden.formats.dumps.flight_recorder` first.
"""
