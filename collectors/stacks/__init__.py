"""Stacks of ranks in a stall, read from outside by py-spy.

Read `collectors.stacks.collector` first.
"""
