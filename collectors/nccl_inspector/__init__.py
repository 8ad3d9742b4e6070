"""Collective calls as NVIDIA's own profiler plug-in, the inspector, writes them.

Read `collectors.nccl_inspector.collector` first.
"""
