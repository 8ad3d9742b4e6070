"""NVIDIA GPUs through NVML.

Read `trainwarden.collectors.gpu.collector` first.
"""
