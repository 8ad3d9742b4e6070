"""Compares ranks with others of their role: which computes longer.

Read `detectors.peers.peer_deviation` first.
"""
