"""Collective calls as NVIDIA's own profiler plug-in, the inspector, writes them.

Read `trainwarden.collectors.nccl_inspector.collector` first.
"""
