"""Metrics of jobs for Prometheus: one table of families, filled at each scrape.

Read `dashboards.exposition.jobs` first.
"""
