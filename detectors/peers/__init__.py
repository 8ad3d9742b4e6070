"""Ranks compared with one another: who computes longer than those of the same role.

Read `detectors.peers.peer_deviation` first.
"""
