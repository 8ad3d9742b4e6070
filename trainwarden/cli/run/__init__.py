"""Commands that start a training job with the warden beside it; demo, watch and launch share one watched run.

Read `trainwarden.cli.run.job_run` first.
"""
