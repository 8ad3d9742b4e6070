"""Fitting every trainable detector, judging it on test jobs, and the gate.

Read `trainwarden.trainer_offline.fit.fit` first.
"""
