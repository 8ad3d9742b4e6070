"""Which of the three answers a job gets: an incident, healthy, or not judged.

Read `trainwarden.cli.ask.judging.job_state` first.
"""
