"""What the agents of a job of any size would send, made from the recording of one; with a fault if asked for.

Read `trainwarden.simulation.fleet` first.
"""

from __future__ import annotations

from trainwarden.simulation.faults import FAULTS, Fault
from trainwarden.simulation.fleet import Fleet
from trainwarden.simulation.recording import Recording, recording

__all__ = ["FAULTS", "Fault", "Fleet", "Recording", "recording"]
