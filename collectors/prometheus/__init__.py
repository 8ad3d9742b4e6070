"""Others' exporters: dcgm-exporter and node_exporter scraped in place of agents.

Read `collectors.prometheus.collector` first.
"""
