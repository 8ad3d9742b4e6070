"""Format: stacks of processes as py-spy, gdb (pstack) and Python's faulthandler print them, and who stands apart.

One process's stack says where it is and not whether it stays there. Stacks of all ranks say more: where most of them
wait for each other in one place, the one that is somewhere else is what they wait for.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from trainwarden.errors import DataError
from trainwarden.formats.dumps.flight_recorder import rank_of
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import LEAST_RANKS, Verdict, line_of
from trainwarden.recorded.job import LogTable

NAME: Final = "process stacks"
ALONE: Final = "stacks of one process, which tell where it is and not whether it stays there: give those of all ranks"
EVEN: Final = "stacks of ranks of which none stands apart: give NCCL's flight recorder dumps"
MOST_BYTES: Final = 64 * 1024 * 1024
MOST_APART: Final = 0.25  # of the ranks: more of them are a second group and not what the others wait for

_PROCESS: Final = re.compile(r"^Process ([0-9]{1,10}): ?(.{0,2000})")
_THREAD: Final = re.compile(
    r'^Thread (?:0x)?[0-9A-Fa-f]{1,16} \((?:active|idle)[a-z+]{0,12}\)(?:: "(.{0,80})")?'  # py-spy
    r"|^(?:Current thread|Thread) 0x[0-9a-f]{1,16}(?: \[.{0,80}\])? \(most recent call first\):"  # faulthandler
    r"|^Thread [0-9]{1,6} \((?:Thread 0x[0-9a-f]{1,16} \()?LWP ([0-9]{1,10})\)"  # gdb, pstack
)
_PYSPY: Final = re.compile(r"^\s{4,8}(\S.{0,200}) \(([^()\n]{1,400}?)(?::([0-9]{1,7}))?\)$")
_FAULT: Final = re.compile(r'^\s{2}File "(.{1,400})", line ([0-9]{1,7}) in (\S{1,200})$')
_GDB: Final = re.compile(
    r"^#[0-9]{1,4} {1,2}(?:0x[0-9a-f]{1,16} in )?([^\s(]{1,200}) ?\(.{0,2000}?(?: (?:at|from) (\S{1,400}))?$"
)
_HEADING: Final = re.compile(r"(?i)\b(?:global[ _]?)?rank[ _=:#-]{0,3}([0-9]{1,6})\b")
_MARKS: Final = re.compile(
    r"(?m)^Process [0-9]{1,10}: [^\n]{0,2000}\n(?:Python v|Host:)|^Thread (?:0x)?[0-9A-Fa-f]{1,16} \((?:active|idle)"
    r"|^(?:Current thread|Thread) 0x[0-9a-f]{1,16}(?: \[[^\n]{0,80}\])? \(most recent call first\):\n  File"
    r"|^Thread [0-9]{1,6} \((?:Thread 0x[0-9a-f]{1,16} \()?LWP [0-9]"
)
_JSON: Final = re.compile(r'\s{0,80}\[\s{0,80}\{[^{}]{0,400}"thread_name"')
_LIBRARY: Final = re.compile(
    r"site-packages|dist-packages|/lib/python[0-9]|^torch/|^<|\.so(?:\.[0-9]+)*$|^(?:lib|python[0-9])"
)
# Where a rank stands that waits for others: torch's and NCCL's calls, and what waits for the device that runs them.
_WAITS: Final = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|\bbroadcast|barrier|\b(?:i?send|i?recv)\b|^wait$|Work::wait"
    r"|synchronize|Synchronize|^item$|^backward$|_engine_run_backward|clip_grad|^nccl[A-Z]|ProcessGroup"
    r"|destroy_process_group|^step$"
)
_INNERMOST: Final = 12  # frames in which a wait is looked for


class _Frame(NamedTuple):
    call: str
    file: str
    line: str

    def __str__(self) -> str:
        return f"{self.call} ({'/'.join(self.file.split('/')[-2:])}{':' if self.line else ''}{self.line})"


class Stack(NamedTuple):
    """The main thread of a process, its innermost frame first, and when its file was written."""

    who: str
    rank: int | None
    frames: tuple[_Frame, ...]
    time_s: float = 0.0


class ProcessStacks:
    """One process or several in a file; the rank is in a heading, in the command or in the file's name."""

    name = NAME

    def sniff(self, name: str, head: str) -> float:
        """By the headings of processes and threads; a log in which a rank has dumped its stacks is a log."""
        del name
        if (match := _MARKS.search(head)) is None:
            return SURE if _JSON.match(head) and '"frames"' in head else NEVER
        before = [line for line in head[: match.start()].split("\n") if line.strip()]
        crashed = "CUDA_EXCEPTION" in head or "CUDA Exception" in head or "Fatal Python error" in head
        return NEVER if crashed or (len(before) > 4 and "ptrace" not in head and "LWP" not in head) else SURE

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        data = source.data(MOST_BYTES).decode("utf-8", "replace")
        stacks = list((_spied if _JSON.match(data) else _printed)(data))
        if not stacks:
            raise DataError(f"{source.name}: no stack of a main thread is in it")
        if len(stacks) == 1 and stacks[0].rank is None:
            stacks = [stacks[0]._replace(rank=rank_of(source.stem))]
        time_s = source.path.stat().st_mtime
        return Found(len(stacks), stacks=[one._replace(time_s=time_s) for one in stacks])


def _printed(text: str) -> Iterator[Stack]:
    """Main threads of a text, in its order."""
    who, rank, threads = "", None, list[tuple[str, list[_Frame]]]()
    heading: int | None = None
    for line in text.split("\n"):
        if (process := _PROCESS.match(line)) is not None:
            yield from _main(who, rank, threads)
            threads = []
            said = _HEADING.search(process[2])
            who, rank = f"pid {process[1]}", int(said[1]) if said is not None else heading
            heading = None
        elif (thread := _THREAD.match(line)) is not None:
            threads.append((thread[1] or "", []))
        elif (frame := _frame(line)) is not None:
            if threads or line.startswith("#0"):
                if not threads:
                    threads.append(("", []))
                threads[-1][1].append(frame)
        elif (said := _HEADING.search(line)) is not None and not line.startswith((" ", "\t")):
            yield from _main(who, rank, threads)
            threads = []
            heading = int(said[1])
            who, rank = "", heading
    yield from _main(who, rank, threads)


def _frame(line: str) -> _Frame | None:
    if (found := _PYSPY.match(line)) is not None:
        return _Frame(found[1], found[2], found[3] or "")
    if (found := _FAULT.match(line)) is not None:
        return _Frame(found[3], found[1], found[2])
    if (found := _GDB.match(line)) is not None:
        file, _, number = (found[2] or "").partition(":")
        return _Frame(found[1], file, number)
    return None


def _main(who: str, rank: int | None, threads: Sequence[tuple[str, list[_Frame]]]) -> Iterator[Stack]:
    """The main thread: the one called so, else one that began with the script, else the last that was printed."""
    named = [frames for name, frames in threads if name == "MainThread" and frames]
    began = [frames for _, frames in threads if frames and frames[-1].call in ("<module>", "main", "_start")]
    last = [frames for _, frames in threads if frames]
    for frames in (named or began or last)[-1:]:
        yield Stack(who, rank, tuple(frames))


def _spied(text: str) -> Iterator[Stack]:
    """Main threads of `py-spy dump --json`."""
    try:
        threads: list[dict[str, Any]] = json.loads(text)
    except ValueError:
        return
    for thread in threads:
        if thread.get("thread_name") != "MainThread":
            continue
        frames = tuple(
            _Frame(
                str(one.get("name")), str(one.get("short_filename") or one.get("filename")), str(one.get("line") or "")
            )
            for one in thread.get("frames") or ()
        )
        said = _HEADING.search(str((thread.get("process_info") or {}).get("command_line") or ""))
        yield Stack(f"pid {thread.get('pid')}", int(said[1]) if said is not None else None, frames)


def stacks_compared(stacks: Sequence[tuple[str, Stack]]) -> tuple[list[LogTable], str]:
    """A line about each process that stands apart, by stacks with the names of their files.

    Returns
    -------
    logs : list of LogTable
    why : str
        Why the stacks are not judged; empty where one stands apart.
    """
    verdicts = []
    for place, words in _apart([stack for _, stack in stacks]):
        file, stack = stacks[place]
        device = f"rank{stack.rank}" if stack.rank is not None else stack.who or file
        line = line_of(Verdict(device, "progress", words))
        verdicts.append(LogTable(file, np.array([stack.time_s]), (None,), (stack.rank,), [line]))
    return verdicts, "" if verdicts else EVEN if len(stacks) >= LEAST_RANKS else ALONE


def _apart(stacks: Sequence[Stack]) -> list[tuple[int, str]]:
    """Places of the stacks that are elsewhere while most wait in one place, with words about each."""
    if len(stacks) < LEAST_RANKS:
        return []
    places = [_place(stack.frames) for stack in stacks]
    usual, count = Counter(places).most_common(1)[0]
    apart = [number for number, place in enumerate(places) if place != usual]
    waiting = stacks[places.index(usual)]
    wait = next((frame for frame in waiting.frames[:_INNERMOST] if _WAITS.search(frame.call)), None)
    if wait is None or not apart or len(apart) > max(1.0, MOST_APART * len(stacks)):
        return []
    return [
        (number, f"it stands in {_where(stacks[number].frames)} while {count} others wait in {wait}")
        for number in apart
    ]


def _place(frames: Sequence[_Frame]) -> tuple[_Frame, ...]:
    """The frames of the job's own code, or all where none is; those of libraries below them change while one waits."""
    own = tuple(frame for frame in frames if _is_own(frame))
    return own or tuple(frame._replace(line="") for frame in frames)


def _where(frames: Sequence[_Frame]) -> str:
    """The innermost call, and the innermost one of the job's own code."""
    own = next((frame for frame in frames if _is_own(frame)), None)
    return f"{frames[0]}, called by {own}" if own is not None and own != frames[0] else str(frames[0])


def _is_own(frame: _Frame) -> bool:
    """Whether a frame is of no library; py-spy leaves out the folder in which packages lie.

    Examples
    --------
    >>> [_is_own(_Frame("f", file, "3")) for file in ("train.py", "threading.py", "torch/cuda/__init__.py")]
    [True, False, False]
    """
    package = frame.file.partition("/")[0].removesuffix(".py")
    return bool(frame.line) and package not in sys.stdlib_module_names and not _LIBRARY.search(frame.file)
