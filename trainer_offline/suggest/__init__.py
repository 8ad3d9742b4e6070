"""Suggests annotations of recorded jobs: changed levels, odd stretches, ranks of one role.

Read `trainer_offline.suggest.change_points` first.
"""
