"""What collective calls tell across ranks: who is waited for, and which links are slow.

Read `detectors.transfers.collective_waits` first.
"""
