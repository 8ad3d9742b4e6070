"""What a new user meets in the first hour, each situation with the answer that is due.

Read `tests.first_hour.situations` first.
"""
