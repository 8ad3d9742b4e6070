"""How a recorded job has ended, by its logs: launchers' words for it, when lines were written, what ranks said last.

Read `trainwarden.detectors.logs.ends.last_messages` first.
"""
