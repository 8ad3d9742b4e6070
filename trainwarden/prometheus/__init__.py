"""Metrics of other exporters: their names and labels, and ranges read from a Prometheus.

Read `trainwarden.prometheus.reading` first.
"""
