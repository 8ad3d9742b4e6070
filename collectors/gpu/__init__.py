"""NVIDIA GPUs through NVML.

Read `collectors.gpu.collector` first.
"""
