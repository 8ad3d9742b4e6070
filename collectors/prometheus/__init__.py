"""Scrapes dcgm-exporter and node_exporter where no agents run.

Read `trainwarden.collectors.prometheus.collector` first.
"""
