"""The processes of a validation: ranks on torch.distributed, their nodes, and what disk and memory answer.

Read `trainwarden.actions.validation.running.node` first.
"""
