"""Nodes, as people ask for them and speak of them.

Read `trainwarden.cli.ask.fleet.nodes` first.
"""
