"""Solvers: how to split micro-batches, and when a remedy has earned its price.

Read `actions.planners.microbatches` first.
"""
