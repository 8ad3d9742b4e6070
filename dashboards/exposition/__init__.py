"""What Prometheus is told of the jobs: one table of families, filled from the board at each scrape.

Read `dashboards.exposition.jobs` first.
"""
