"""What a person may want to say of a recorded job: changed levels, stretches unlike the rest, ranks that are alike.

Read `trainer_offline.suggest.change_points` first.
"""
