"""Grafana's dashboards and alerts as code, built into dashboards/grafana and dashboards/provisioning.

Needs grafana-foundation-sdk (extra ``dev``): nothing that runs imports it. Read
`trainwarden.dashboards.grafana_code.job` first.
"""
