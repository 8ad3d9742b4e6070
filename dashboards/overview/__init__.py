"""The newest state of all jobs, for Prometheus, the API, the page and the report.

Read `trainwarden.dashboards.overview.overview` first.
"""
