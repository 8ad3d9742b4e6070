"""One table of alerts, from which Prometheus' rules and Grafana's alerts are built.

Read `trainwarden.dashboards.alerts.table` first.
"""
