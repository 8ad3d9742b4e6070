"""From recorded jobs to training and test data.

Read `trainwarden.trainer_offline.data.prepare` first.
"""
