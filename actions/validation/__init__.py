"""Validation before blame: burn-in of processors and devices, link tests between pairs, disk and memory checks.

Read `trainwarden.actions.validation.programme` first.
"""
