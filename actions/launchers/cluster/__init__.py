"""The local launcher over several nodes: one leader decides, each node carries out what it is ordered.

Read `actions.launchers.cluster.leader` first.
"""
