"""Compares collective calls across ranks: which rank is waited for, which links are slow.

Read `trainwarden.detectors.transfers.collective_waits` first.
"""
