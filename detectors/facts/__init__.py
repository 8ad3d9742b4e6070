"""Hard facts that need no statistics: processes that ended, devices and nodes that failed.

Read `trainwarden.detectors.facts.hard_event` first.
"""
