"""What a person may want to say of a recorded job: where its levels changed, and which of its ranks are alike.

Read `trainer_offline.suggest.change_points` first.
"""
