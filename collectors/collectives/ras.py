"""What NCCL's RAS says of a job's communicators, sent when it stands still with uneven counts or names a lost rank."""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from trainwarden.clock import Clock
from trainwarden.collectors.collectives.ras_client import PORT, Conversation, NoGreetingError, parse_address
from trainwarden.collectors.ranks import ProcessFinder, rank_processes
from trainwarden.errors import CollectorError
from trainwarden.hook import read_header
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import EventRecord, Record
from trainwarden.settings import Config, PositiveSeconds

MAX_PACKED: Final = 600_000  # of the bus's 900,000 bytes
_BUSY_INTERVAL_S: Final = 0.1
_MAX_ENVIRON_BYTES: Final = 1 << 20
_SENT: Final = 2  # like answers: detection compares two
_KEPT: Final = ("rank", "host", "pid", "cuda_dev", "status", "considered_dead", "abort_flag", "async_error")
_TROUBLE: Final = re.compile(rb"\b(INCOMPLETE|DEAD|ABORT|ERROR|MISMATCH)\b")
_CHANGING: Final = re.compile(rb"(?m)^.*(elapsed|[Tt]imestamp|\d\d:\d\d:\d\d).*$")


class NcclRasCollector:
    """Asks NCCL's RAS socket of this node for the state of all communicators of the job.

    One answer is about the whole job, so only the node of rank 0 asks (or any node whose ranks are not known).
    A running job sends nothing: an answer goes out where it differs from the one sent last and either names a rank
    that is missing, dead or in error, or has uneven counts that have not moved since the answer before.

    Parameters
    ----------
    config : NcclRasCollector.Config
    scope : Scope
    clock : Clock
    """

    class Config(Config, frozen=True, kw_only=True):
        """`interval_s`: time between two questions; `address`: ``host:port`` in numbers, instead of what the
        environment of rank 0 says (`NCCL_RAS_ADDR`) or port 28028 of this machine; `greeting_s`, `greetings`: every
        process of a node listens there, and a stopped one takes its share of connections and says nothing, so a
        connection without a greeting is given up after so long, and so many are tried.
        """

        interval_s: Annotated[float, msgspec.Meta(ge=0.02, le=60.0)] = 30.0
        address: str | None = None
        patience_s: PositiveSeconds = 30.0
        greeting_s: PositiveSeconds = 2.5
        greetings: Annotated[int, msgspec.Meta(ge=1, le=100)] = 8
        proc: str = "/proc"

    def __init__(self, config: Config, scope: Scope, clock: Clock) -> None:
        self._config = config
        self._scope = scope
        self._run_dir = Path(scope.run_dir)
        self._lookout = ProcessFinder(config.proc)
        self._talk: Conversation | None = None
        self._ungreeted = 0  # connections of this question that nobody has greeted
        self._next_s = float("-inf")
        self._before = ""  # digest of the answer before
        self._sent: dict[str, int] = {}  # digest of the answer sent last, and how often

    @property
    def interval_s(self) -> float:
        return min(_BUSY_INTERVAL_S, self._config.interval_s) if self._talk is not None else self._config.interval_s

    def supported(self) -> str | None:
        return None

    def collect(self, now_s: float) -> Iterable[Record]:
        if self._talk is None:
            if now_s < self._next_s and self._next_s - now_s <= self._config.interval_s:
                return
            self._next_s = now_s + self._config.interval_s * 0.99
            if not self._is_mine():
                return
            self._ungreeted = 0
            if not self._call(now_s):
                return
        assert self._talk is not None
        try:
            whole = self._talk.go_on(now_s)
        except NoGreetingError as error:
            self._hang_up()
            self._ungreeted += 1
            if self._ungreeted >= self._config.greetings:
                raise CollectorError(f"{self._ungreeted} connections in a row: {error}") from error
            self._call(now_s)
            return
        except CollectorError:
            begun = self._talk.stage != "greeting"
            self._hang_up()
            if begun:
                raise
            return  # whoever listens there is not NCCL
        if whole:
            answer = self._talk.answer
            self._hang_up()
            yield from self._records_of(answer, now_s)

    def wake_fds(self) -> Sequence[int]:
        return () if self._talk is None or self._talk.fileno() < 0 else (self._talk.fileno(),)

    def position(self) -> JsonObject:
        return {"before": self._before, "sent": dict(self._sent)}

    def restore(self, position: JsonObject) -> None:
        self._before = str(position.get("before", ""))
        self._sent = {str(digest): int(number) for digest, number in dict(position.get("sent", {})).items()}

    def close(self) -> None:
        self._hang_up()

    # -- whom to ask

    def _call(self, now_s: float) -> bool:
        """Begin a conversation; False if nobody listens: no NCCL here, or RAS is off, most of the time and no error."""
        patience_s, greeting_s = self._config.patience_s, self._config.greeting_s
        try:
            host, port = parse_address(self._address())
            self._talk = Conversation(host, port, now_s, patience_s=patience_s, greeting_s=greeting_s)
        except CollectorError:
            return False
        return True

    def _hang_up(self) -> None:
        if self._talk is not None:
            self._talk.close()
            self._talk = None

    def _is_mine(self) -> bool:
        ranks = {process.rank for process in rank_processes(self._run_dir)}
        return not ranks or 0 in ranks

    def _address(self) -> str:
        if self._config.address is not None:
            return self._config.address
        for process in rank_processes(self._run_dir):
            if process.rank:
                break
            try:
                header = read_header(process.path)
                pid = self._lookout.look(header).pid if header is not None else None
                with open(f"{self._config.proc}/{pid}/environ", "rb") as file:
                    for pair in file.read(_MAX_ENVIRON_BYTES).split(b"\0"):
                        if pair.startswith(b"NCCL_RAS_ADDR="):
                            return os.fsdecode(pair.partition(b"=")[2])
            except OSError:  # gone, or another user's
                continue
        return f"localhost:{PORT}"

    # -- what to send

    def _records_of(self, answer: bytes, now_s: float) -> Iterable[Record]:
        text, trouble, uneven = _condensed(answer)
        digest = hashlib.sha256(text).hexdigest()[:16]
        still, self._before = digest == self._before, digest
        number = self._sent.get(digest, 0)
        if number >= _SENT or not (trouble or (uneven and still)):
            return
        packed = base64.b85encode(zlib.compress(text, 6)).decode()
        if len(packed) > MAX_PACKED:
            raise CollectorError(f"NCCL's RAS report has {len(packed)} bytes even packed")
        self._sent = {digest: number + 1}
        yield EventRecord(
            id=f"nccl_ras/{self._scope.node}/{digest}/{now_s * 1000:.0f}", job=self._scope.job, node=self._scope.node,
            time_s=now_s, kind="flight_recorder", message="what NCCL's RAS says of the communicators",
            fields={"ras": packed, "still": still},
        )  # fmt: skip


def _condensed(answer: bytes) -> tuple[bytes, bool, bool]:
    """The answer without what changes by itself; whether it names a rank in trouble, and has uneven counts.

    Communicators in which all is well are left out, but for the largest, by which ranks are known.
    """
    start = answer.find(b"{")
    if start < 0 or b'"communicators"' not in answer:
        text = _CHANGING.sub(b"", answer)
        return text, _TROUBLE.search(text) is not None, True
    try:
        raw = msgspec.json.decode(answer[start:])
        comms = [_communicator(comm) for comm in raw["communicators"]]
    except (msgspec.DecodeError, RecursionError):
        return answer, True, True  # detection knows how some versions of NCCL spoil their JSON
    except (KeyError, TypeError, AttributeError) as error:
        raise CollectorError("NCCL's RAS report is no list of communicators") from error
    largest = max(range(len(comms)), key=lambda place: len(comms[place][0]["ranks"]), default=-1)
    kept = [comm for place, (comm, sick, uneven) in enumerate(comms) if sick or uneven or place == largest]
    out = msgspec.json.encode({"communicators": kept})
    return out, any(sick for _, sick, _ in comms), any(uneven for _, _, uneven in comms)


def _communicator(raw: Mapping[str, Any]) -> tuple[dict[str, Any], bool, bool]:
    """One communicator with the fields that matter; whether it has a rank in trouble, and uneven counts."""
    ranks = [_rank(one) for one in raw.get("ranks") or []]
    missing = [_rank(one) for one in raw.get("missing_ranks") or []]
    out = {key: raw[key] for key in ("hash", "secondary_hash", "size") if key in raw}
    out |= {"ranks": ranks, "missing_ranks": missing}
    sick = bool(missing) or any(_in_trouble(one) for one in ranks)
    counts = {msgspec.json.encode(one.get("collective_counts"), order="sorted") for one in ranks}
    return out, sick, len(counts) > 1


def _rank(raw: Mapping[str, Any]) -> dict[str, Any]:
    out = {key: raw[key] for key in _KEPT if key in raw}
    counts = raw.get("collective_counts")
    if isinstance(counts, Mapping):
        out["collective_counts"] = {op: count for op, count in counts.items() if count}
    return out


def _in_trouble(rank: Mapping[str, Any]) -> bool:
    told = rank.get("status")
    status = told if isinstance(told, Mapping) else rank
    wrong = status.get("async_error", 0) not in (0, 7)  # ncclSuccess, ncclInProgress
    return bool(status.get("considered_dead")) or bool(status.get("abort_flag")) or wrong
