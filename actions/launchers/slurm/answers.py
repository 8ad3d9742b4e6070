"""What Slurm says of jobs and nodes: `scontrol show` as JSON (from 23.02) and as text (every version).

In text, names, comments and reasons may hold blanks, equal signs and line ends of their users. They stand last on
their lines, Slurm's own lines begin with three blanks, and of two fields of one name the first counts; so no text of a
user is taken for a state.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

import msgspec

RUNS: Final = frozenset({"RUNNING", "SUSPENDED", "STOPPED", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT"})
WAITS: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD"})
FAILED: Final = frozenset({"FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY"})
ENDED: Final = frozenset({"COMPLETED", "CANCELLED", "TIMEOUT", "DEADLINE", "PREEMPTED", "REVOKED"})
HELD_AFTER_REQUEUE: Final = "requeued in held state"  # Slurm's own words, with blanks or underscores between
_SUFFIXES: Final = "*~#!%$@^-+"  # of a node's state in text; a star: it does not answer
_FREE_TEXT: Final = frozenset(
    {"JobName", "Comment", "AdminComment", "SystemComment", "Command", "WorkDir", "StdErr", "StdIn", "StdOut"}
)
_FIELD: Final = re.compile(r"([A-Za-z][\w/:]*)=(\S*)")
_NODES: Final = re.compile(r"^NodeName=", re.MULTILINE)
_STATE: Final = re.compile(r"^   State=(\S+)", re.MULTILINE)
_REASON: Final = re.compile(r"^   Reason=(.*)", re.MULTILINE)
_NUMBER_BEHIND: Final = re.compile(r"\((\d{1,10})\)$")
_BY_WHOM: Final = re.compile(r" \[[^\]\s]*@[^\]\s]*\]$")


class SlurmJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job. `nodes` and `excluded` are Slurm's lists (``n[1-4,7]``), `restarts` how often it was requeued.

    `held` says that a requeue holds it, not a person; `requeueable` that it is a batch job that may be requeued.
    `owner` are the numbers of its user and group,
    `submitted_s` when it was submitted, or requeued.
    """

    id: int
    states: frozenset[str]
    why: str = ""
    held: bool = False
    restarts: int = 0
    requeueable: bool = False
    nodes: str = ""
    excluded: str = ""
    comment: str = ""
    owner: tuple[int, int] | None = None
    partition: str = ""
    account: str = ""
    submitted_s: float | None = None

    @property
    def finished(self) -> bool:
        """Whether it has ended, well or not; one that failed may be requeued."""
        return bool(self.states & (ENDED | FAILED)) and "COMPLETING" not in self.states

    @property
    def state(self) -> str:
        """Its states as a person reads them."""
        return "+".join(sorted(self.states))


class SlurmNode(msgspec.Struct, frozen=True, kw_only=True):
    """One node; `reason` is why it is out, without by whom and when."""

    name: str
    states: frozenset[str]
    reason: str = ""

    @property
    def out(self) -> bool:
        """Whether Slurm places no new job there until somebody resumes it."""
        return bool(self.states & {"DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING"})

    @property
    def down(self) -> bool:
        """Whether it is lost, for now or for good."""
        return bool(self.states & {"DOWN", "NOT_RESPONDING", "ERROR"})


def jobs_of_json(answer: dict[str, Any]) -> list[SlurmJob]:
    """The jobs of ``scontrol --json show job``, data parsers v0.0.39 (23.02) to v0.0.44 (25.11).

    Raises
    ------
    ValueError, TypeError, KeyError
        If it is no such answer.

    Examples
    --------
    >>> said = {"job_id": 7, "job_state": ["RUNNING"], "batch_flag": True, "requeue": True, "nodes": "n[1-2]"}
    >>> [job] = jobs_of_json({"jobs": [said]})
    >>> job.state, job.requeueable, job.nodes
    ('RUNNING', True, 'n[1-2]')
    """
    return [
        SlurmJob(
            id=_number(raw["job_id"]),
            states=_words(raw["job_state"]),
            why=str(raw.get("state_description") or raw.get("state_reason") or ""),
            held=_held(f"{raw.get('state_description')} {raw.get('state_reason')}", _words(raw["job_state"])),
            restarts=_number(raw.get("restart_cnt", 0)),
            requeueable=bool(raw.get("requeue")) and bool(raw.get("batch_flag")),
            nodes=str(raw.get("nodes") or ""),
            excluded=str(raw.get("excluded_nodes") or ""),
            comment=str(raw.get("comment") or ""),
            owner=_owner(raw.get("user_id"), raw.get("group_id")),
            partition=str(raw.get("partition") or ""),
            account=str(raw.get("account") or ""),
            submitted_s=_number(raw["submit_time"]) if "submit_time" in raw else None,
        )
        for raw in answer["jobs"]
    ]


def jobs_of_text(answer: str) -> list[SlurmJob]:
    """The jobs of ``scontrol show job``.

    Raises
    ------
    ValueError, KeyError
        If it is no such answer.
    """
    return [
        SlurmJob(
            id=int(said["JobId"]),
            states=frozenset(said["JobState"].split(",")),
            why=said.get("Reason", "").replace("_", " "),
            held=_held(said.get("Reason", ""), frozenset({said["JobState"]})),
            restarts=int(said.get("Restarts", 0)),
            requeueable=said.get("Requeue") == "1" and said.get("BatchFlag") != "0",
            nodes=said.get("NodeList", ""),
            excluded=said.get("ExcNodeList", ""),
            comment=said.get("Comment", "").rstrip(" "),
            owner=_owner(*(_number_behind(said.get(name, "")) for name in ("UserId", "GroupId"))),
            partition=said.get("Partition", ""),
            account=said.get("Account", ""),
            submitted_s=_seconds(said.get("SubmitTime", "")),
        )
        for said in _records(answer)
    ]


def nodes_of_json(answer: dict[str, Any]) -> list[SlurmNode]:
    """The nodes of ``scontrol --json show node``.

    Raises
    ------
    ValueError, TypeError, KeyError
        If it is no such answer.
    """
    return [
        SlurmNode(
            name=str(raw["name"]),
            states=_words(raw["state"]) | _words(raw.get("state_flags") or []),
            reason=str(raw.get("reason") or ""),
        )
        for raw in answer["nodes"]
    ]


def nodes_of_text(answer: str) -> list[SlurmNode]:
    """The nodes of ``scontrol show node``.

    Raises
    ------
    KeyError
        If it is no such answer.

    Examples
    --------
    >>> [node] = nodes_of_text('NodeName=n1 Arch=x86_64\\n   State=DOWN*+DRAIN Weight=1\\n   Reason=fan [root@now]')
    >>> sorted(node.states), node.reason, node.out
    (['DOWN', 'DRAIN', 'NOT_RESPONDING'], 'fan', True)
    """
    nodes = []
    for record in _NODES.split(answer)[1:]:  # ten thousand of them are asked for twice a second while an incident lasts
        state, reason = _STATE.search(record), _REASON.search(record)
        if state is None:
            raise KeyError("State")
        states = {word.rstrip(_SUFFIXES) for word in state[1].split("+")}
        if "*" in state[1]:
            states.add("NOT_RESPONDING")
        why = _BY_WHOM.sub("", reason[1]) if reason is not None else ""
        nodes.append(SlurmNode(name=record.split(maxsplit=1)[0], states=frozenset(states), reason=why))
    return nodes


def _records(answer: str) -> Iterator[dict[str, str]]:
    """The fields of each job."""
    record: dict[str, str] = {}
    last = ""
    for line in answer.splitlines():
        if line.startswith("JobId="):
            if record:
                yield record
            record, last = {}, ""
        elif not line.startswith("   "):
            if last and line:  # a text of a user goes on
                record[last] += f"\n{line}"
            continue
        for found in _FIELD.finditer(line):
            name, value = found.groups()
            last = name
            free = name in _FREE_TEXT
            if free:
                value = line[found.start(2) :]
            record.setdefault(name, "" if value == "(null)" and not free else value)
            if free:
                break
    if record:
        yield record


def _held(why: str, states: frozenset[str]) -> bool:
    return HELD_AFTER_REQUEUE in why.replace("_", " ") or "REQUEUE_HOLD" in states


def _owner(user: Any, group: Any) -> tuple[int, int] | None:
    return None if user is None or group is None else (_number(user), _number(group))


def _number_behind(said: str) -> int | None:
    """The number of ``name(number)``."""
    found = _NUMBER_BEHIND.search(said)
    return None if found is None else int(found[1])


def _seconds(said: str) -> float | None:
    """A time as text, which is of this machine's zone."""
    try:
        return datetime.fromisoformat(said).timestamp()
    except (ValueError, OverflowError):
        return None


def _number(raw: Any) -> int:
    """A number, as itself or as ``{"set": true, "infinite": false, "number": 3}``."""
    return int(raw["number"]) if isinstance(raw, dict) else int(raw)


def _words(raw: Any) -> frozenset[str]:
    return frozenset(str(word).upper() for word in ([raw] if isinstance(raw, str) else raw))
