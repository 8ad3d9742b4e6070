"""The trainer service: when to train again, and one whole run.

Read `trainwarden.trainer_offline.service.handler` first.
"""
