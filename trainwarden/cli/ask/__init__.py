"""Commands that answer a question at once, from a bus, a recording or a planner.

Read `trainwarden.cli.ask.jobs_on_bus` first.
"""
