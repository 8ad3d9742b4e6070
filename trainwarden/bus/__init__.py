"""The bus: a durable log of topics, embedded on one machine or Apache Kafka beyond it.

Read `trainwarden.bus.address` first.
"""
