"""Real training runs of our own, seconds apart: how they are captured, what was wrong when, and how they are judged.

Read `plan.py` first: it says which runs there are, what goes wrong in them, and which half each belongs to.
"""
