"""Commands from what was recorded to models and plans: annotate, train, models, profile, plan.

Read `trainwarden.cli.learn.train` first.
"""
