"""What commands of several rooms use; no command lives here.

Read `trainwarden.cli.shared.output` first.
"""
