"""Vote: something has happened that needs no statistics. Process exits, exceptions, fatal signals, Xids, lost nodes."""

from __future__ import annotations

from typing import Annotated

import msgspec

from trainwarden.detectors.collectives.faults import CollectiveFault, CollectiveFaults, collective_vote
from trainwarden.detectors.collectives.findings import Accused
from trainwarden.detectors.facts.command import Ended
from trainwarden.detectors.facts.devices import DeviceFault, DeviceFaults, device_vote
from trainwarden.detectors.facts.failure import Failure
from trainwarden.detectors.facts.failures import Failures
from trainwarden.detectors.facts.nodes import NodeConfig
from trainwarden.detectors.facts.output import Raised, Word, Writer
from trainwarden.detectors.job.object_codec import WholeMemory
from trainwarden.detectors.job.window import Window
from trainwarden.detectors.logs.device_lines import Tasks
from trainwarden.detectors.logs.ends.endings import Ending, EndTable
from trainwarden.detectors.logs.rules import LogRules, shipped_rules
from trainwarden.detectors.protocol import Role
from trainwarden.records import Vote


class HardEventConfig(NodeConfig, frozen=True, kw_only=True):
    """How long to wait for what.

    Attributes
    ----------
    root_patience_s : float
        How long a cascade waits for the failure that caused it.
    words_patience_s : float
        How long a plain exit code waits for the exception that it may follow from.
    node_silent_s, all_silent_s, wait_steps, still_steps, unknown_s
        See `trainwarden.detectors.facts.nodes.NodeConfig`.
    outlived_s : float
        A failure is over once the job has finished a step this long after it.
    """

    root_patience_s: Annotated[float, msgspec.Meta(ge=0.0, le=60.0)] = 1.0
    words_patience_s: Annotated[float, msgspec.Meta(ge=0.0, le=60.0)] = 0.2
    outlived_s: Annotated[float, msgspec.Meta(gt=0.0)] = 2.0


class HardEvent(WholeMemory):
    """Facts that need no vote.

    Parameters
    ----------
    config : HardEvent.Config
    rules : LogRules, optional
        How the text of an exception is understood; default the rules shipped.
    """

    Config = HardEventConfig
    role = Role(reads="events", opens=("hard",))
    HELD = (Accused, CollectiveFault, DeviceFault, Ended, Ending, EndTable, Failure, Raised, Tasks, Word, Writer)
    NOT_KEPT = ("_shown",)

    def __init__(self, config: HardEventConfig, rules: LogRules | None = None) -> None:
        self._failures = Failures(
            root_patience_s=config.root_patience_s,
            words_patience_s=config.words_patience_s,
            outlived_s=config.outlived_s,
            rules=rules or shipped_rules(),
        )
        self._devices = DeviceFaults(config)
        self._collectives = CollectiveFaults()
        self._shown = 0

    @property
    def more(self) -> bool:
        """True while findings of another kind wait behind the one shown."""
        return self._shown + 1 < bool(self._failures) + len(self._devices.groups()) + len(self._collectives.groups())

    def update(self, window: Window) -> None:
        """Observe new events; with ``more`` a further call on the same window turns to the next finding."""
        if window.events or not self.more:
            self._shown = 0
        else:
            self._shown += 1
        for event in sorted(window.events, key=lambda event: event.time_s):
            self._failures.apply(event, window)
            self._devices.apply(event, window)
            self._collectives.apply(event, window)
        if not self._failures.restarting:
            self._devices.watch_nodes(window)
        self._failures.update(window)
        self._collectives.expire(window)

    def score(self, window: Window) -> Vote:
        """The finding whose turn it is, failed processes first; normal if there is none."""
        votes = [lambda members=members: device_vote(members) for members in self._devices.groups()]
        votes += [lambda members=members: collective_vote(members) for members in self._collectives.groups()]
        place = self._shown - bool(self._failures)
        if self._failures and (place < 0 or not votes):
            return self._failures.vote(window)
        return votes[min(place, len(votes) - 1)]() if votes else Vote(opinion="normal")
