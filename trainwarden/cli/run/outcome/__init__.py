"""What a watched run comes to when its command has ended.

Read `trainwarden.cli.run.outcome.job_answer` first.
"""
