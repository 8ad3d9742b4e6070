"""What the log files of one job say about each other: ranks of processes, and clocks.

Read `trainwarden.recorded.joining.read_log` first.
"""
