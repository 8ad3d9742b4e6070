"""Brakes on actions: stops, budgets, silences, maintenance windows, and limits on evicted nodes.

Read `trainwarden.actions.brakes.brakes` first.
"""
