"""Solvers: splits of micro-batches, GPUs of tasks, places of ranks, and when a remedy is due.

Read `trainwarden.actions.planners.microbatches` first.
"""
