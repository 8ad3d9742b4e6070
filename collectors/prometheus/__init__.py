"""Scrapes dcgm-exporter and node_exporter where no agents run.

Read `collectors.prometheus.collector` first.
"""
