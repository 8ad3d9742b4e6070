"""Vote: something has happened that needs no statistics. Process exits, exceptions, fatal signals, Xids, lost nodes.

When one rank of a synchronous job dies, all others die within a second or so of broken connections, and the launcher
ends what is left. The first failure that names its own cause is the root; the others are its cascade. What looks like
a cascade waits a moment for its root; if none comes, it is told all the same, and corrected when the root arrives.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec

from detectors.log_rules import LogRules, Xid, load_xids
from detectors.protocol import abstain, pack, unpack
from detectors.window import Window
from trainwarden.errors import DetectorError
from trainwarden.records import EventRecord, IncidentKind, Severity, Suspect, Vote
from trainwarden.settings import Config

STOP_SIGNALS: Final = frozenset({"SIGTERM", "SIGINT", "SIGHUP"})
MAX_SUSPECTS: Final = 16
OLD_S: Final = 7200.0  # Xid lines older than this are from before (Azure NHC ignores them after 2 h)
BURST_S: Final = 180.0  # repeats of an Xid within this count once (NVSentinel, health-events-analyzer)
REPEATS: Final = 5  # bursts within a day that make a watched Xid an incident (NVSentinel)


class HardEventConfig(Config, frozen=True, kw_only=True):
    """How long to wait for what.

    Attributes
    ----------
    root_patience_s : float
        How long a cascade waits for the failure that caused it.
    words_patience_s : float
        How long a plain exit code waits for the exception that it may follow from.
    node_silent_s, all_silent_s
        Without a heartbeat for this long a node is lost: while others are heard, and when none is.
    outlived_s : float
        A failure is over once the job has finished a step this long after it.
    """

    root_patience_s: Annotated[float, msgspec.Meta(ge=0.0, le=60.0)] = 1.0
    words_patience_s: Annotated[float, msgspec.Meta(ge=0.0, le=60.0)] = 0.2
    node_silent_s: Annotated[float, msgspec.Meta(gt=0.0)] = 2.5
    all_silent_s: Annotated[float, msgspec.Meta(gt=0.0)] = 5.0
    outlived_s: Annotated[float, msgspec.Meta(gt=0.0)] = 2.0


Role = Literal["root", "cascade", "stop", "clean"]


class _Failure(msgspec.Struct):
    """What is known of one failed process."""

    rank: int | None
    node: str
    time_s: float
    seen_s: float
    role: Role
    kind: IncidentKind
    severity: Severity
    reason: str
    step: int | None = None
    spoken: bool = False
    hold_s: float = 0.0


class _Device(msgspec.Struct):
    """A finding about a device or node that lasts until it is taken back."""

    kind: IncidentKind
    severity: Severity
    node: str
    device: str | None
    rank: int | None
    time_s: float
    reason: str


class HardEvent:
    """Facts that need no vote.

    Parameters
    ----------
    config : HardEvent.Config
    rules : LogRules, optional
        How the text of an exception is understood; default the rules shipped.
    """

    Config = HardEventConfig

    def __init__(self, config: HardEventConfig, rules: LogRules | None = None) -> None:
        self._config = config
        self._rules = rules or LogRules()
        self._xids = load_xids()
        self._failures: dict[str, _Failure] = {}
        self._devices: dict[str, _Device] = {}
        self._bursts: dict[str, list[float]] = {}
        self._planned = False
        self._planned_from_s, self._planned_until_s = float("inf"), float("inf")
        self._finished = False
        self._shown = 0

    @property
    def more(self) -> bool:
        """True while findings of another kind wait behind the one shown."""
        return self._shown + 1 < len(self._groups())

    def update(self, window: Window) -> None:
        """Take in new events; with ``more`` a further call on the same window turns to the next finding."""
        if window.events or not self.more:
            self._shown = 0
        else:
            self._shown += 1
        for event in sorted(window.events, key=lambda event: event.time_s):
            self._take(event, window)
        self._watch_nodes(window)
        self._settle(window)

    def score(self, window: Window) -> Vote:
        """The finding whose turn it is; normal if there is none."""
        groups = self._groups()
        if not groups:
            return Vote(opinion="normal")
        name, members = groups[min(self._shown, len(groups) - 1)]
        if name == "failure":
            return self._failure_vote(window)
        return _device_vote(members)

    def state(self) -> bytes:
        """See `detectors.protocol.Detector`."""
        plain: dict[str, Any] = {
            "failures": self._failures, "devices": self._devices, "bursts": self._bursts, "planned": self._planned,
            "span": [at if at < float("inf") else None for at in (self._planned_from_s, self._planned_until_s)],
            "finished": self._finished,
        }  # fmt: skip
        return pack("hard_event", plain)

    def restore(self, state: bytes) -> None:
        """See `detectors.protocol.Detector`."""
        plain, _ = unpack("hard_event", state)
        try:
            self._failures = msgspec.convert(plain["failures"], dict[str, _Failure])
            self._devices = msgspec.convert(plain["devices"], dict[str, _Device])
            self._bursts = msgspec.convert(plain["bursts"], dict[str, list[float]])
        except (KeyError, msgspec.ValidationError) as error:
            raise DetectorError(f"state of hard_event is damaged: {error}") from error
        self._planned, self._finished, self._shown = plain["planned"], plain["finished"], 0
        self._planned_from_s, self._planned_until_s = (
            float("inf") if at is None else float(at) for at in plain["span"]
        )

    # -- events ----------------------------------------------------------------------------------------------

    def _take(self, event: EventRecord, window: Window) -> None:
        if event.kind == "process_exit":
            self._take_exit(event, window)
        elif event.kind == "exception":
            self._take_exception(event, window)
        elif event.kind == "fatal_signal":
            signal = str(event.fields.get("signal", "a fatal signal"))
            self._fail(event, window, "root", "crash", "sev2", f"{_who(event)} died of {signal}")
        elif event.kind == "xid":
            self._take_xid(event, window)
        elif event.kind in {"link_down", "device_lost", "heartbeat_lost"}:
            self._take_device(event)
        elif event.kind == "link_up":
            self._devices.pop(f"nic_down/{event.node}/{event.device}", None)
        elif event.kind == "restart":
            self._take_restart(event)
        elif event.kind == "job_end":
            self._finished = True
        elif event.kind in {"job_start", "process_start"}:
            # A launcher starts new processes when the old ones are gone: what failed before is over.
            self._finished = False
            self._failures = {key: one for key, one in self._failures.items() if one.time_s >= event.time_s}

    def _take_restart(self, event: EventRecord) -> None:
        if event.fields.get("stage") == "done":
            self._planned_until_s = event.time_s
            self._planned = False
            self._devices.clear()  # the job runs on what the launcher chose; what is still broken will say so
        else:
            self._planned, self._planned_from_s, self._planned_until_s = True, event.time_s, float("inf")
            self._failures.clear()

    def _was_planned(self, event: EventRecord) -> bool:
        """True if the process was ended by a restart that the launcher had announced."""
        return self._planned_from_s <= event.time_s <= self._planned_until_s

    def _take_exit(self, event: EventRecord, window: Window) -> None:
        code, signal = event.fields.get("code"), event.fields.get("signal")
        life = _life(event)
        if code == 0 and not signal:
            return
        if self._was_planned(event) or event.fields.get("asked"):  # the launcher ended it itself
            return
        known = self._failures.get(life)
        if signal in STOP_SIGNALS or code in {130, 143}:
            if known is None:
                name = str(signal or f"exit code {code}")
                self._fail(event, window, "stop", "crash", "sev2", f"{_who(event)} was ended by {name}")
            return
        how = f"was killed by {signal}" if signal else f"exited with code {code}" if code is not None else "ended"
        if signal is not None:
            # A process that dies by signal after raising a connection error was ended by someone, or aborted on it.
            role: Role = "cascade" if known is not None and known.role == "cascade" else "root"
            if role == "root" and self._after_failure(event):
                role = "cascade"
            self._fail(event, window, role, "crash", "sev2", f"{_who(event)} {how}")
        elif known is None:
            # An exit code without an exception seen: the exception may still be on its way.
            role = "cascade" if self._after_failure(event) else "root"
            self._fail(event, window, role, "crash", "sev2", f"{_who(event)} {how}")

    def _after_failure(self, event: EventRecord) -> bool:
        """True if another process had failed of its own cause before."""
        life = _life(event)
        return any(
            other.role == "root" and key != life and other.time_s < event.time_s - 0.005
            for key, other in self._failures.items()
        )

    def _take_exception(self, event: EventRecord, window: Window) -> None:
        if self._was_planned(event):
            return
        text = event.message.strip() or str(event.fields.get("type", "exception"))
        rule = self._rules.match(text)
        name = text.partition(":")[0].rpartition(".")[2]
        if name in {"KeyboardInterrupt", "SystemExit", "SignalException"} or (rule and rule.role == "phase"):
            self._fail(event, window, "stop", "crash", "sev2", f"{_who(event)} was interrupted")
            return
        frame = event.fields.get("frame")
        reason = f"{_who(event)} raised {text[:200]}" + (f" at {frame}" if frame else "")
        if rule is not None and rule.role == "cascade":
            self._fail(event, window, "cascade", rule.kind or "crash", "sev2", reason)
            return
        kind: IncidentKind = "exception"
        if rule is not None and rule.role == "root" and rule.kind is not None and rule.kind != "crash":
            kind = rule.kind
        severity: Severity = rule.severity if rule is not None and rule.class_ in {"H", "N"} else "sev2"
        self._fail(event, window, "root", kind, severity, reason)

    def _fail(
        self, event: EventRecord, window: Window, role: Role, kind: IncidentKind, severity: Severity, reason: str
    ) -> None:
        known = self._failures.get(_life(event))
        spoken = event.kind == "exception" and known is not None and not known.spoken
        if known is not None and known.role == "root" and not spoken:
            return  # the exit that follows an exception says nothing new
        step = _step_of(event, window)
        bare = event.kind == "process_exit" and role == "root" and not event.fields.get("signal")
        self._failures[_life(event)] = _Failure(
            rank=event.rank,
            node=event.node,
            time_s=event.time_s if known is None else min(event.time_s, known.time_s),
            seen_s=window.now_s,
            role=role,
            kind=kind,
            severity=severity,
            reason=reason,
            step=step,
            spoken=event.kind == "exception",
            hold_s=self._config.words_patience_s if bare else 0.0,
        )

    def _take_xid(self, event: EventRecord, window: Window) -> None:
        code = event.fields.get("xid", event.fields.get("code"))
        if not isinstance(code, int | float) or window.now_s - event.time_s > OLD_S:
            return
        xid = self._xids.get(int(code)) or Xid(
            code=int(code), class_="WATCH", kind="gpu_lost", severity="sev3", advice="unknown code: record"
        )
        where = f"{event.node}/{event.device}"
        wanted = xid.device_at_fault
        if int(code) == 154:
            text = event.message.lower()
            wanted = any(word in text for word in ("reset required", "reboot required", "drain and reset", "gpu reset"))
        elif not wanted and xid.class_ in {"APP", "WATCH"}:
            wanted = xid.class_ == "WATCH" and self._repeats(f"{where}/{int(code)}", event.time_s)
        if wanted:
            reason = f"Xid {int(code)} on {event.device or 'a GPU'} of {event.node}: {xid.advice}"
            self._devices.setdefault(
                f"{xid.kind}/{where}",
                _Device(xid.kind, xid.severity, event.node, event.device, event.rank, event.time_s, reason),
            )

    def _repeats(self, key: str, time_s: float) -> bool:
        bursts = [at for at in self._bursts.get(key, []) if time_s - at < 86_400.0]
        if not bursts or time_s - bursts[-1] > BURST_S:
            bursts.append(time_s)
        self._bursts[key] = bursts[-2 * REPEATS :]
        return len(bursts) >= REPEATS

    def _take_device(self, event: EventRecord) -> None:
        table: dict[str, tuple[IncidentKind, Severity, str]] = {
            "link_down": ("nic_down", "sev2", "the link went down"),
            "device_lost": ("gpu_lost", "sev1", "the driver has lost the device"),
            "heartbeat_lost": ("node_lost", "sev1", "no heartbeat any more"),
        }
        kind, severity, what = table[event.kind]
        where = f"{event.device} of {event.node}" if event.device else event.node
        reason = f"{where}: {event.message[:200] or what}"
        self._devices.setdefault(
            f"{kind}/{event.node}/{event.device}",
            _Device(kind, severity, event.node, event.device, event.rank, event.time_s, reason),
        )

    def _watch_nodes(self, window: Window) -> None:
        silent = window.node_silent_s
        if self._finished or self._planned:
            return
        everyone = bool(silent) and min(silent.values()) > self._config.node_silent_s
        limit = self._config.all_silent_s if everyone else self._config.node_silent_s
        for node, silent_s in silent.items():
            key = f"node_lost/{node}/None"
            if silent_s > limit and key not in self._devices:
                reason = f"{node} has sent no heartbeat for {silent_s:.1f} s while its ranks should be running"
                self._devices[key] = _Device("node_lost", "sev1", node, None, None, window.now_s - silent_s, reason)
            elif silent_s < 1.0:
                self._devices.pop(key, None)

    # -- judgement -------------------------------------------------------------------------------------------

    def _settle(self, window: Window) -> None:
        """Forget failures that the job has outlived, and a restart whose end nobody told."""
        if self._planned and window.phase != "restart":
            self._planned, self._planned_until_s = False, window.end_s
        if self._failures and len(window.ends_s):
            newest_s = max(failure.time_s for failure in self._failures.values())
            if float(window.ends_s[-1]) > newest_s + self._config.outlived_s:
                self._failures.clear()

    def _told(self, window_now_s: float) -> list[_Failure]:
        """Failures to be told now, the most likely root first."""
        failures = sorted(self._failures.values(), key=lambda failure: (failure.time_s, failure.rank or 0))
        roots = [failure for failure in failures if failure.role == "root"]
        if roots:
            return [failure for failure in roots if window_now_s - failure.seen_s >= failure.hold_s]
        cascades = [failure for failure in failures if failure.role == "cascade"]
        stops = [failure for failure in failures if failure.role == "stop"]
        if cascades and stops and _one_was_killed(stops, cascades):
            return stops[:1] if window_now_s - stops[0].seen_s >= self._config.root_patience_s else []
        if stops:  # the user, the scheduler or a launcher's clean-up
            return []
        if cascades and window_now_s - cascades[0].seen_s >= self._config.root_patience_s:
            return cascades[:1]
        return []

    def _groups(self) -> list[tuple[str, list[_Device]]]:
        """Findings by kind, the gravest first; failures of processes come before devices."""
        groups: dict[str, list[_Device]] = {}
        for device in self._devices.values():
            groups.setdefault(device.kind, []).append(device)
        ordered = sorted(groups.items(), key=lambda entry: (min(d.severity for d in entry[1]), entry[0]))
        return ([("failure", [])] if self._failures else []) + ordered

    def _failure_vote(self, window: Window) -> Vote:
        told = self._told(window.now_s)
        if not told:
            waiting = sum(failure.role == "cascade" for failure in self._failures.values())
            if waiting:
                return abstain("waiting for the failure that others follow from")
            return Vote(opinion="normal", reason="ended from outside")
        first = told[0]
        certain = first.role != "cascade"
        suspects = tuple(
            Suspect(
                score=(1.0 if place == 0 else 0.5) * (1.0 if certain else 0.3), reason=failure.reason,
                rank=failure.rank, node=failure.node,
            )
            for place, failure in enumerate(told[:MAX_SUSPECTS])
        )  # fmt: skip
        others = sum(failure.role == "cascade" for failure in self._failures.values()) - (not certain)
        reason = first.reason + (f"; {others} others followed" if others > 0 else "")
        return Vote(
            opinion="anomalous",
            score=1.0 if certain else 0.7,
            reason=reason,
            kind=first.kind,
            severity=first.severity,
            suspects=suspects,
            onset_s=first.time_s,
            onset_step=first.step,
            at_step=first.step,
            hard=True,
        )


def _device_vote(members: list[_Device]) -> Vote:
    members = sorted(members, key=lambda device: (device.severity, device.time_s))
    first = members[0]
    suspects = tuple(
        Suspect(score=1.0, reason=device.reason, rank=device.rank, node=device.node, device=device.device)
        for device in members[:MAX_SUSPECTS]
    )
    reason = first.reason if len(members) == 1 else f"{first.reason}, and {len(members) - 1} more"
    return Vote(
        opinion="anomalous", score=1.0, reason=reason, kind=first.kind, severity=first.severity, suspects=suspects,
        onset_s=min(device.time_s for device in members), hard=True,
    )  # fmt: skip


def _one_was_killed(stops: list[_Failure], cascades: list[_Failure]) -> bool:
    """True if one process was stopped alone: it went first, the others broke off, and any further stop came later."""
    first = stops[0]
    alone = all(stop.time_s - first.time_s > 0.15 for stop in stops[1:])
    return alone and all(cascade.time_s > first.time_s - 0.1 for cascade in cascades)


def _who(event: EventRecord) -> str:
    return f"rank {event.rank} on {event.node}" if event.rank is not None else f"a process on {event.node}"


def _life(event: EventRecord) -> str:
    """Identity of the process that an event is about."""
    incarnation = event.fields.get("incarnation") or event.fields.get("pid") or event.id
    return f"{event.node}/{incarnation}"


def _step_of(event: EventRecord, window: Window) -> int | None:
    step = event.fields.get("step")
    if isinstance(step, int | float):
        return int(step)
    if event.rank is not None:
        for column, rank in enumerate(window.ranks):
            if rank == event.rank and window.beats.step[column] >= 0:
                return int(window.beats.step[column])
    return int(window.steps[-1]) if len(window.steps) else None
