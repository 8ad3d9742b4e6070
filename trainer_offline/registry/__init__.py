"""Versions of models in MLflow: published, promoted, and fetched for serving.

Read `trainwarden.trainer_offline.registry.registry` first.
"""
