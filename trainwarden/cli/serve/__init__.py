"""Commands that are one process of the warden, until it is stopped.

Read `trainwarden.cli.serve.process` first.
"""
