"""Who broke a collective: PyTorch's flight recorders and NCCL's RAS.

Read `detectors.collectives.findings` first.
"""
