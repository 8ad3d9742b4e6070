"""What holds actions back: a person's word, budgets, maintenance windows, and how many nodes may be taken out.

Read `actions.brakes.brakes` first.
"""
