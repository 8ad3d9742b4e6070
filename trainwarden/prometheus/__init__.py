"""What others' exporters say: their names and labels, and a range of it read from a Prometheus.

Read `trainwarden.prometheus.reading` first.
"""
