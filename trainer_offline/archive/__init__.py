"""The bus as Parquet files: written exactly once, joined, expired, read and exported.

Read `trainwarden.trainer_offline.archive.service` first.
"""
