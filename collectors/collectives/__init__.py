"""The ranks' records of their collective calls, and NCCL's RAS.

Read `trainwarden.collectors.collectives.dumps` first.
"""
