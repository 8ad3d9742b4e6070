"""The ranks' records of their collective calls, and NCCL's RAS.

Read `collectors.collectives.dumps` first.
"""
