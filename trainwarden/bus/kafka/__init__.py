"""The bus on Apache Kafka.

Read `trainwarden.bus.kafka.engine` first.
"""
