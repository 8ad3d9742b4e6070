"""Who broke a collective, from PyTorch's flight recorders, NCCL's RAS, counts and watchdog lines.

Read `trainwarden.detectors.collectives.findings` first.
"""
