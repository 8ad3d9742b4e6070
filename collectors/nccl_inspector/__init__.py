"""Calls of NCCL as NVIDIA's own profiler plug-in, the inspector, writes them: some users have it in place of ours.

Read `collectors.nccl_inspector.collector` first.
"""
