"""The bus as Parquet files: written exactly once, joined, expired, read and exported.

Read `trainer_offline.archive.service` first.
"""
