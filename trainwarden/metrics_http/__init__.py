"""How a service answers Prometheus: a small HTTP server, with TLS and passwords where a file says so.

Read `trainwarden.metrics_http.listener` first.
"""
