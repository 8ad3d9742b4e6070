"""Suggests annotations of recorded jobs: changed levels, odd stretches, ranks of one role.

Read `trainwarden.trainer_offline.suggest.change_points` first.
"""
