"""How the ranks of a job are laid out in tensor, context, data, pipeline and expert parallel groups.

Read `trainwarden.parallelism.layout` first.
"""
