"""Grafana dashboards and alerts as code, and Prometheus rules."""
