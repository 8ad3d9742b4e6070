"""Stacks of ranks in a stall, read from outside by py-spy.

Read `trainwarden.collectors.stacks.collector` first.
"""
