"""Solvers: how to split micro-batches, share out GPUs and place ranks, and when a remedy has earned its price.

Read `actions.planners.microbatches` first.
"""
