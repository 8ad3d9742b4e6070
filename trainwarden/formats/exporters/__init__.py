"""Formats of exporters, Prometheus and Grafana.

Read `trainwarden.formats.exporters.exposition` first.
"""
