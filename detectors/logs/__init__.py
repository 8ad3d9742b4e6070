"""What log lines say: rules for single lines, floods, and templates nobody has seen before.

Read `detectors.logs.log_window` first.
"""
