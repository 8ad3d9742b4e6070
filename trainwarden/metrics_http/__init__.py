"""A small HTTP server for Prometheus' scrapes, with TLS, passwords and limits for strangers.

Read `trainwarden.metrics_http.listener` first.
"""
