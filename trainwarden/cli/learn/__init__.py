"""Commands from what was recorded to models: annotate, train, models.

Read `trainwarden.cli.learn.train` first.
"""
