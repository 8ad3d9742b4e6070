"""Validation before blame: burn-in of processors and devices, link tests between pairs, disk and memory checks.

Read `actions.validation.programme` first.
"""
