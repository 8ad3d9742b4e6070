"""A range of a job judged on request, by ``trainwarden detect`` in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from trainwarden.dashboards.web.problems import Problem
from trainwarden.self_metrics import SelfMetrics

AT_ONCE: Final = 1
MOST_WAITING: Final = 4
TIMEOUT_S: Final = 60.0
MEMORY_BYTES: Final = 8 * 1024**3  # of addresses: libraries reserve far more than they use
MAX_ANSWER_BYTES: Final = 16 * 1024**2
MAX_SAID_BYTES: Final = 64 * 1024
PIPES_S: Final = 2.0


class Judge:
    """Runs `command` with the job and the range, a few at a time.

    Parameters
    ----------
    command : sequence of str
        ``trainwarden detect`` with the bus and the settings that it is to use.
    """

    def __init__(
        self,
        command: Sequence[str],
        metrics: SelfMetrics,
        *,
        timeout_s: float = TIMEOUT_S,
        memory_bytes: int = MEMORY_BYTES,
    ) -> None:
        self._command = tuple(command)
        self._metrics = metrics
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._turn = asyncio.Semaphore(AT_ONCE)
        self._asked = 0

    async def judge(self, job: str, from_s: float, to_s: float) -> Any:
        """What ``trainwarden detect`` answers.

        Raises
        ------
        Problem
            429 while others wait, 504 if it takes too long, 422 if it says that it cannot be asked so or its answer is
            too large, 500 if it breaks.
        """
        if self._asked >= AT_ONCE + MOST_WAITING:
            self._count("refused")
            raise Problem(429, "others wait for a judgement already", {"retry-after": str(int(self._timeout_s))})
        self._asked += 1
        try:
            async with self._turn:
                return await self._run(f"--job={job}", f"--from={from_s!r}", f"--to={to_s!r}", "--json")
        finally:
            self._asked -= 1

    async def _run(self, *words: str) -> Any:
        process = await asyncio.create_subprocess_exec(
            *self._command, *words, stdin=DEVNULL, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        with contextlib.suppress(ProcessLookupError):  # it may have ended already
            resource.prlimit(process.pid, resource.RLIMIT_AS, (self._memory_bytes, self._memory_bytes))
        try:
            async with asyncio.timeout(self._timeout_s):
                answer, said = await _outputs(process)
                code = await process.wait()
        except TimeoutError:
            self._count("too_long")
            raise Problem(504, f"it took longer than {self._timeout_s:g} s; ask for a shorter range") from None
        finally:
            if process.returncode is None:
                _end(process)
                await _gone(process)
        return self._read(code, answer, said)

    def _read(self, code: int, answer: bytes | None, said: bytes | None) -> Any:
        if answer is None:
            self._count("too_large")
            raise Problem(422, f"the answer has more than {MAX_ANSWER_BYTES} bytes; ask for a shorter range")
        if code == 2:
            self._count("wrong")
            raise Problem(422, _last_line(said or b""))
        try:
            judged = msgspec.json.decode(answer) if code in (0, 1) else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            judged = None
        if not isinstance(judged, dict):
            self._count("broken")
            raise Problem(500, f"judging ended with exit code {code} and no answer: {_last_line(said or b'')}")
        self._count("done")
        return judged

    def _count(self, outcome: str) -> None:
        self._metrics.count("judgements_total", "Ranges that were to be judged, by what came of it.", outcome=outcome)


async def _outputs(process: Process) -> tuple[bytes | None, bytes | None]:
    """Both outputs; None for one that is longer than it may be, at which the process is ended."""
    assert process.stdout is not None
    assert process.stderr is not None
    return await asyncio.gather(
        _read_up_to(process, process.stdout, MAX_ANSWER_BYTES), _tail(process.stderr, MAX_SAID_BYTES)
    )


def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


async def _gone(process: Process) -> None:
    """Wait for a process that has been ended, and read what is left in its pipes: before their end it is not told."""
    assert process.stdout is not None
    assert process.stderr is not None
    with contextlib.suppress(TimeoutError):  # a child of its own may hold them
        async with asyncio.timeout(PIPES_S):
            await asyncio.gather(_tail(process.stdout, 1), _tail(process.stderr, 1))
            await process.wait()


async def _read_up_to(process: Process, stream: asyncio.StreamReader, most: int) -> bytes | None:
    text = bytearray()
    while piece := await stream.read(65_536):
        if len(text) > most:
            continue  # what was in the pipe still: nobody hears of the process's end before its pipe's
        text += piece
        if len(text) > most:
            _end(process)
    return bytes(text) if len(text) <= most else None


async def _tail(stream: asyncio.StreamReader, most: int) -> bytes:
    """The last `most` bytes."""
    text = bytearray()
    while piece := await stream.read(65_536):
        text = (text + piece)[-most:]
    return bytes(text)


def _last_line(said: bytes) -> str:
    """The sentence with which a command ends, as one line that may be shown."""
    lines = [line for line in said.decode("utf-8", "replace").splitlines() if line.strip()] or ["it said nothing"]
    return "".join(letter if letter.isprintable() else " " for letter in lines[-1][-500:]).strip()
