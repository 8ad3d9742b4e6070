"""Versions of models in MLflow: published, promoted, and fetched for serving.

Read `trainer_offline.registry.registry` first.
"""
