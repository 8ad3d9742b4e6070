"""From recorded jobs to training and test data.

Read `trainer_offline.data.prepare` first.
"""
