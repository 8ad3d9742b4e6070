"""Compares ranks with others of their role: which computes longer.

Read `trainwarden.detectors.peers.peer_deviation` first.
"""
