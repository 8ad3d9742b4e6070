"""The rendezvous service: agents hold a connection each, over which both sides send one JSON object a line.

It decides by `table` and keeps nothing on disk. Whoever has not yet shown the token is a stranger: of those few are
heard at once, fewer of one address, for a moment, and agents that are connected notice nothing of them.
"""

from __future__ import annotations

import asyncio
import hmac
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import msgspec

from trainwarden.actions.launchers.torchrun.checks import JobChecks
from trainwarden.actions.launchers.torchrun.checks_afar import ChecksAfar
from trainwarden.actions.launchers.torchrun.messages import (
    BEAT,
    ENCODE,
    FIRST,
    MAX_BYTES,
    MOST_NODES,
    AskJobs,
    Beat,
    Hello,
    JobSeen,
    Question,
    Refused,
    Reply,
    Ring,
    Submit,
)
from trainwarden.actions.launchers.torchrun.operations import answer, end_operations
from trainwarden.actions.launchers.torchrun.rings import Rings
from trainwarden.actions.launchers.torchrun.table import JobTable
from trainwarden.clock import Clock
from trainwarden.errors import ConfigError
from trainwarden.metrics_http.access import Person, Tokens
from trainwarden.metrics_http.listening import Listening
from trainwarden.metrics_http.tls import PeerTls
from trainwarden.network.host_port import host_and_port

log = logging.getLogger("trainwarden.rendezvous")

LOST_AFTER_S: Final = 2.0
FIRST_S: Final = 2.0  # for a handshake, and for the first line
TICK_S: Final = 0.1
AT_ONCE: Final = 64  # strangers of one address
MOST_JOBS: Final = 1000
_UNREAD_BYTES: Final = 4 * MAX_BYTES  # an agent that reads nothing is hung up on
_LOOPBACK: Final = frozenset({"127.0.0.1", "::1", "localhost"})
_WHO: Final = Person("", "act")  # the agents' own token may do all


class _Line:
    """The connection of one agent, and what was said to it last."""

    def __init__(self, life: str, writer: asyncio.StreamWriter, bus: str | None) -> None:
        self.life, self.writer, self._bus = life, writer, bus
        self._serial, self._splits = -1, 0
        self._last = b""
        self._ring: Ring | None = None

    def send(self, table: JobTable, rings: Rings, *, answer: bool) -> None:
        """Say what the agent is to know, if it is new or it waits for an answer."""
        word, memory = table.word(self.life), table.memory
        number = memory.splits[-1].number if memory.splits else 0
        ring = rings.of(table, self.life)
        plain = ENCODE(word)
        news = memory.serial != self._serial or ring not in (None, self._ring)
        if not (answer or news or plain != self._last):
            return
        splits = memory.splits if number != self._splits else None
        self._serial, self._splits, self._last = memory.serial, number, plain
        line = plain
        if news:
            self._ring = ring or self._ring
            line = ENCODE(msgspec.structs.replace(word, memory=memory, splits=splits, bus=self._bus, ring=ring))
        if self.writer.transport.get_write_buffer_size() > _UNREAD_BYTES:
            self.writer.transport.abort()
        else:
            self.writer.write(line + b"\n")


class RendezvousService:
    """Listens at `listen`, ``HOST:PORT``; port 0 is any that is free.

    Parameters
    ----------
    token : str, optional
        That all agents share; without one only this machine is served.
    people : Tokens, optional
        Who else may ask for states (role ``observe``) and operations (``act``).
    tls : PeerTls, optional
        Serves those alone whose certificate the same authority has signed.
    lost_after_s : float
        An agent that is silent for so long is lost.
    bus : str, optional
        To which nodes that nobody watches are to be watched.
    checks : JobChecks, optional
        Measures the one job whose ranks are all on this machine.

    Raises
    ------
    ConfigError
        If others than this machine would be served without a token, or a file of `tls` cannot be used.
    """

    def __init__(
        self,
        listen: str,
        clock: Clock,
        *,
        token: str | None = None,
        people: Tokens | None = None,
        tls: PeerTls | None = None,
        lost_after_s: float = LOST_AFTER_S,
        bus: str | None = None,
        checks: JobChecks | None = None,
    ) -> None:
        self._host, self._port = host_and_port(listen, "--listen", least_port=0)
        if token is None and self._host not in _LOOPBACK:
            raise ConfigError(
                f"rendezvous: without a token only this machine is served; {self._host} is open to others"
            )
        self._clock, self._token, self._people = clock, token, people
        self._tls = None if tls is None else tls.serving()
        self._lost_after_s, self._bus, self._checks = lost_after_s, bus, checks
        self._tables: dict[str, JobTable] = {}
        self._lines: dict[str, dict[str, _Line]] = {}  # by job and life
        self._rings: dict[str, Rings] = {}
        self._listening: Listening | None = None
        self._peers: dict[asyncio.Task[Any], asyncio.StreamWriter] = {}
        self._logged: dict[str, tuple[int, int, int | None]] = {}
        self._broken: dict[str, tuple[str, int]] = {}  # by job: why its last such turn broke, and how many have
        self._wake = asyncio.Event()

    @property
    def has_agents(self) -> bool:
        """Whether any agent is connected."""
        return any(self._lines.values())

    def run(self, stop: Callable[[], bool], ready: Callable[[str], None]) -> None:
        """Serve until `stop()` is true; `ready` is called with the address once agents are heard.

        Raises
        ------
        ConfigError
            If `listen` cannot be listened on.
        """
        asyncio.run(self._run(stop, ready))

    async def _run(self, stop: Callable[[], bool], ready: Callable[[str], None]) -> None:
        more: dict[str, Any] = {} if self._tls is None else {"ssl_handshake_timeout": FIRST_S}
        try:
            self._listening = Listening.at(self._host, self._port)
            self._listening.limit(of_one=AT_ONCE, known=MOST_JOBS * MOST_NODES)
            server = await asyncio.start_server(
                self._connected, sock=self._listening, limit=MAX_BYTES, ssl=self._tls, backlog=512, **more
            )
        except (OSError, UnicodeError) as error:
            said = getattr(error, "strerror", None) or error
            raise ConfigError(f"rendezvous: {self._host}:{self._port} cannot be listened on ({said})") from error
        port = server.sockets[0].getsockname()[1]
        address = f"[{self._host}]:{port}" if ":" in self._host else f"{self._host}:{port}"
        log.info("rendezvous served", extra={"fields": {"address": address}})
        ready(address)
        try:
            while not stop():
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wake.wait(), TICK_S)
                self._wake.clear()
                self._decide()
        finally:
            server.close()
            if self._checks is not None:
                self._checks.close()
            for writer in self._peers.values():
                writer.transport.abort()
            if self._peers:
                await asyncio.wait(self._peers, timeout=FIRST_S)

    # --- decisions ---------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        now_s = self._clock.monotonic_s()
        for job, table in self._tables.items():
            try:
                self._take_turn(job, table, now_s)
            except Exception as error:  # noqa: BLE001 - the one place: what breaks a job's turn ends no other job
                self._log_broken(job, error)

    def _take_turn(self, job: str, table: JobTable, now_s: float) -> None:
        table.tick(now_s)
        if table.checks is not None:
            table.checks.advance()
        end_operations(table, now_s)
        self._log(job, table)
        for line in self._lines[job].values():
            line.send(table, self._rings[job], answer=False)

    def _log_broken(self, job: str, error: Exception) -> None:
        """Count a turn that broke, and say so where the reason is another than before."""
        why = f"{type(error).__name__}: {error}"[:300]
        before, count = self._broken.get(job, ("", 0))
        self._broken[job] = why, count + 1
        if why != before:
            fields = {"job": job, "error": why, "turns": count + 1}
            log.error("a job's turn broke", exc_info=error, extra={"fields": fields})

    def _log(self, job: str, table: JobTable) -> None:
        memory = table.memory
        now = memory.round, memory.target, memory.over
        if self._logged.get(job) == now:
            return
        self._logged[job] = now
        what = "round begins" if memory.round == memory.target else "new round wanted"
        fields = {"job": job, "round": memory.target, "nodes": ",".join(seat.node for seat in memory.roster)[:500]}
        if memory.over is not None:
            what, fields["code"] = "job over", memory.over
        log.info(what, extra={"fields": {**fields, "reason": memory.reason}})

    # --- connections -------------------------------------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._peers[task] = writer
        try:
            async with asyncio.timeout(FIRST_S):
                first = FIRST.decode(await reader.readline())
            self._note_known(first, writer)
            if isinstance(first, Question):
                writer.write(ENCODE(self._answer(first)) + b"\n")
                await writer.drain()
            elif (no := self._why_not(first)) is not None:
                writer.write(ENCODE(Refused(no)) + b"\n")
                await writer.drain()
            else:
                await self._follow(first, reader, writer)
        except (OSError, EOFError, ValueError, RecursionError, TimeoutError) as error:
            log.debug("connection ended", extra={"fields": {"error": str(error)[:200]}})
        finally:
            self._peers.pop(task, None)
            writer.close()

    async def _follow(self, hello: Hello, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Hear one agent until its connection ends."""
        table = self._table(hello.job)
        line = self._lines[hello.job][hello.life] = _Line(hello.life, writer, self._bus)
        table.hello(hello, self._clock.monotonic_s())
        self._rings[hello.job].look_again()
        self._wake.set()
        line.send(table, self._rings[hello.job], answer=True)
        by_itself, last = False, hello.beat
        try:
            while said := await reader.readline():
                if self._lines[hello.job].get(hello.life) is not line:
                    return  # it has connected anew
                beat = BEAT.decode(said)
                table.beat(hello.life, beat, self._clock.monotonic_s())
                if beat.keeper != last.keeper:
                    self._rings[hello.job].look_again()
                if _matters(last, beat):
                    self._wake.set()
                last = beat
                line.send(table, self._rings[hello.job], answer=True)
            by_itself = True
        except ConnectionResetError:
            by_itself = True  # a process was killed with lines unread
        finally:
            if self._lines[hello.job].get(hello.life) is line:
                del self._lines[hello.job][hello.life]
                if by_itself:  # else the network may be at fault, and it lives
                    table.closed(hello.life, self._clock.monotonic_s())

    def _why_not(self, hello: Hello) -> str | None:
        """Why an agent is not served."""
        if not self._is_own(hello.token):
            return "the token is not the one that is wanted here"
        if len(self._lines.get(hello.job, {})) >= 2 * MOST_NODES:
            return f"job '{hello.job[:80]}' has {2 * MOST_NODES} agents already"
        if hello.job not in self._tables and len(self._tables) >= MOST_JOBS and not self._forget():
            return f"{MOST_JOBS} jobs have agents here already"
        table = self._tables.get(hello.job)
        return None if table is None else table.misfit(hello, self._clock.monotonic_s())

    def _note_known(self, first: Hello | Question, writer: asyncio.StreamWriter) -> None:
        """A caller that has shown a token takes no place of the strangers."""
        is_known = self._is_own(first.token) or (isinstance(first, Question) and self._who(first.token) is not None)
        if is_known and self._listening is not None:
            self._listening.known(writer.get_extra_info("socket").fileno())

    def _who(self, token: str) -> Person | None:
        if self._is_own(token):
            return _WHO
        return None if self._people is None else self._people.who(token)

    def _is_own(self, token: str) -> bool:
        said = token.encode("utf-8", "surrogatepass")
        return self._token is None or hmac.compare_digest(said, self._token.encode())

    def _table(self, job: str) -> JobTable:
        if job not in self._tables:
            table = self._tables[job] = JobTable(job, self._lost_after_s, self._clock.monotonic_s())
            own = self._checks is not None and self._checks.job == job
            (self._checks if own and self._checks is not None else ChecksAfar(self._clock)).attach(table)
            self._lines[job], self._rings[job] = {}, Rings(job)
        return self._tables[job]

    def _forget(self) -> bool:
        """Forget the oldest job that no agent is connected for; whether there was one."""
        idle = [job for job, lines in self._lines.items() if not lines]
        job = min(idle, key=lambda job: self._tables[job].memory.over is None, default=None)
        if job is None:
            return False
        del self._tables[job], self._lines[job], self._rings[job]
        self._logged.pop(job, None)
        self._broken.pop(job, None)
        return True

    def _answer(self, question: Question) -> Reply | Refused:
        """What a person or an engine is told."""
        who = self._who(question.token)
        if who is None:
            return Refused("the token is not the one that is wanted here")
        ask = question.ask
        if not who.may("act" if isinstance(ask, Submit) else "observe"):
            return Refused(f"{who.name} has the role {who.role}; this needs act")
        if isinstance(ask, AskJobs):
            return Reply(jobs=self._jobs())
        job = ask.operation.job if isinstance(ask, Submit) else ask.job
        if (table := self._tables.get(job)) is None:
            return Refused(f"no agent of job '{job[:80]}' has been heard here")
        if isinstance(ask, Submit) and who.name:
            by = f"{who.name[:80]} ({who.role}), as {ask.operation.by[:80]}"
            ask = Submit(msgspec.structs.replace(ask.operation, by=by))
        reply = answer(ask, table, self._clock.monotonic_s())
        self._wake.set()
        return reply

    def _jobs(self) -> tuple[JobSeen, ...]:
        return tuple(
            JobSeen(job=job, weight=table.weight, minimum=table.least, maximum=table.most)
            for job, table in self._tables.items()
            if table.weight is not None and table.memory.over is None
        )


def _matters(before: Beat, now: Beat) -> bool:
    """Whether something is to be decided at once."""
    return (before.at, before.waits, before.failure, before.finished, before.left, before.split, before.keeper) != (
        now.at, now.waits, now.failure, now.finished, now.left, now.split, now.keeper,
    )  # fmt: skip
