"""Metrics of jobs for Prometheus: one table of families, filled at each scrape.

Read `trainwarden.dashboards.exposition.jobs` first.
"""
