"""Commands for before a run: are settings and machine fit, how fast is it here, the hook as one file.

Read `trainwarden.cli.setup.doctor` first.
"""
