"""What is known of all jobs, the newest of it: for Prometheus, the API, the page and the report.

Read `dashboards.overview.overview` first.
"""
