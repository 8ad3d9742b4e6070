"""One rank's process: its environment, its start, its signals, its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import cache, partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec
import psutil

import trainwarden
from trainwarden import hook, rundir
from trainwarden.launching.job_output import LOG_BYTES, LogWriter, NoticeWriter, OutputSink, PipeReader, join_all

EXEC = Path(trainwarden.__file__).with_name("torchrun") / "rank.py"
_LEAST_LOG_BYTES = 1024 * 1024  # of one rank
MAX_RESTARTS = "3"  # what the engine's own table tries of a crash (actions/remedies/remedies.toml)
LAST_OUTPUT_S = 0.5  # a child outside the rank's group may hold its output for ever
_INJECT = Path(trainwarden.__file__).with_name("inject")


class LocalJob(msgspec.Struct, frozen=True, kw_only=True):
    """What all ranks of a job on this machine share.

    `log_bytes` bounds the logs of all of them together; `show` is a descriptor that their output is passed on to.
    `checkpoints` is the folder that their checkpoints lie in, where a person has named it.
    """

    command: tuple[str, ...]
    ranks: int
    run_dir: Path
    job: str
    node: str
    log_bytes: int = LOG_BYTES
    show: int | None = None
    checkpoints: Path | None = None


class RanksOutput:
    """Where the ranks' output goes: a log each, and one stream with a prefix like torch's own for everybody."""

    def __init__(self, place: LocalJob) -> None:
        self._run_dir = place.run_dir
        self._outlet = None if place.show is None else OutputSink(place.show)
        self._sayings = None if self._outlet is None else NoticeWriter(self._outlet)
        self._logs = LogWriter(max(_LEAST_LOG_BYTES, place.log_bytes // place.ranks))

    def drain(self, rank: int, source: int) -> PipeReader:
        """Pass on and keep what `rank` writes to the pipe `source`, and close that at its end."""
        keep = partial(self._logs.keep, rundir.rank_log(self._run_dir, rank))
        return PipeReader(source, self._outlet, keep, prefix=f"[rank{rank}]: ".encode())

    def news(self) -> list[str]:
        """Sentences about what is not kept, each once; shown as well, where output is."""
        news = self._logs.news()
        for sentence in news:
            self.say(sentence)
        return news

    def say(self, sentence: str) -> None:
        """Show `sentence` as ours, where output is shown."""
        if self._sayings is not None:
            self._sayings.say(sentence)

    def settled(self, drain: PipeReader) -> bool:
        """Whether all that came through `drain` has been passed on and kept."""
        return drain.join(0.0) and self._logs.flush(0.0)

    def settle(self, drains: list[PipeReader]) -> None:
        """Wait a little, once for all `drains`, for the last words of ranks that have ended."""
        join_all(drains, LAST_OUTPUT_S)
        self._logs.flush(LAST_OUTPUT_S)

    def close(self) -> None:
        """Everything is in its log, where the disk lets it, and said, where anybody listens."""
        self._logs.close()
        if self._sayings is not None:
            self._sayings.close(LAST_OUTPUT_S)


class RankProcess:
    """A running rank in a session and process group of its own.

    `pidfd` becomes readable when it ends.
    """

    def __init__(
        self,
        place: LocalJob,
        rank: int,
        environ: Mapping[str, str],
        output: RanksOutput,
    ) -> None:
        self.rank = rank
        self.asked_to_stop = self._reaped = False
        self._place = place
        source, end = os.pipe()
        try:
            self.pid, self._wait = _execute(place.command, environ, end)
        except BaseException:
            os.close(source)
            raise
        finally:
            os.close(end)
        self.drain = output.drain(rank, source)
        self.pidfd = os.pidfd_open(self.pid)
        self._start_s = psutil.Process(self.pid).create_time()

    def header(self) -> hook.Header | None:
        """What the hook inside the process says of itself; None if it has not come that far."""
        folder, name = self._place.run_dir / rundir.HOOK, f"rank-{self.rank}-{self.pid}"
        # In a container a pid comes back with each start: of several files the newest is of this process.
        found = [hook.read_header(path) for path in (folder / f"{name}.hook", *folder.glob(f"{name}-*.hook"))]
        return max((one for one in found if one is not None), key=lambda one: one.start_monotonic_s, default=None)

    @property
    def incarnation(self) -> str:
        """The name of this very process: the hook's where it has one, so that all records agree."""
        header = self.header()
        return header.incarnation if header else f"{self.pid}-{round(self._start_s * 1000)}"

    def ask_to_stop(self) -> None:
        """SIGTERM to all of its group, and SIGCONT so that a stopped process can follow it."""
        if self._reaped:
            return
        self.asked_to_stop = True
        self._signal(signal.SIGTERM)
        self._signal(signal.SIGCONT)

    def kill(self) -> None:
        """SIGKILL to all of its group."""
        if self._reaped:
            return
        self.asked_to_stop = True
        self._signal(signal.SIGKILL)

    def pass_on(self, number: int) -> None:
        """Signal `number` to the process itself: what it has started may know no such signal, and would die of it."""
        if not self._reaped:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.pidfd, number)

    def reap(self) -> int:
        """Exit code as `subprocess` has it (negative: the signal), waiting if needed; nothing of its group stays.

        What is left of the group is killed while the dead leader still holds its number.
        """
        os.waitid(os.P_PIDFD, self.pidfd, os.WEXITED | os.WNOWAIT)
        self._signal(signal.SIGKILL)
        code = self._wait()
        self._reaped = True  # its number may be another's from here on
        os.close(self.pidfd)
        return code

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            return  # all gone already, which is what was wanted


def _execute(command: Sequence[str], environ: Mapping[str, str], output: int) -> tuple[int, Callable[[], int]]:
    """A new process of `command` that writes to `output`, and what waits for its end."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", str(EXEC), "exec", str(os.getpid()), *command],
        env=dict(environ), stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
    )  # fmt: skip
    return process.pid, process.wait


def environment(
    place: LocalJob, rank: int, attempt: int, port: int, base: Mapping[str, str], *, resume_from: Path | None = None
) -> dict[str, str]:
    """The environment of `rank`: torch's own variables, where the hook reports to, and one thread by default.

    Ranks meet at `port` of this machine. What the environment says of checkpoints is in docs/checkpoints.md.

    Examples
    --------
    >>> place = LocalJob(command=("true",), ranks=2, run_dir=Path("run"), job="j", node="n")
    >>> made = environment(place, 1, 0, 29500, {"PYTHONPATH": "mine"})
    >>> made["RANK"], made["WORLD_SIZE"], made["OMP_NUM_THREADS"], made["PYTHONPATH"].endswith(":mine")
    ('1', '2', '1', True)
    """
    run_dir = place.run_dir.absolute()
    if place.checkpoints is not None:
        base = {name: value for name, value in base.items() if name != "TRAINWARDEN_RESUME_FROM"}
        base["TRAINWARDEN_CHECKPOINTS"] = str(place.checkpoints.absolute())
        if resume_from is not None:
            base["TRAINWARDEN_RESUME_FROM"] = str(resume_from.absolute())
    paths = [str(_INJECT), *filter(None, [base.get("PYTHONPATH")])]
    return {
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "GLOO_SOCKET_IFNAME": "lo",  # a machine's own name need not resolve, or resolves to what others cannot reach
        **call_recording(),
        **base,
        "PYTHONPATH": os.pathsep.join(paths),
        **_torchrun_says(place, rank, attempt),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "TRAINWARDEN_HOOK_DIR": str((run_dir / rundir.HOOK).resolve()),
        "TRAINWARDEN_RUN_DIR": str(run_dir),
        "TRAINWARDEN_JOB": place.job,
        "TRAINWARDEN_NODE": place.node,
        "TRAINWARDEN_ATTEMPT": str(attempt),
    }


@cache
def call_recording() -> Mapping[str, str]:
    """What torch before 2.9 needs to record calls, or nobody can say who broke a collective (docs/detection.md).

    Newer ones record by themselves, and each rank of theirs would warn of the old name.
    """
    try:
        newer = tuple(int(part) for part in version("torch").split(".")[:2]) >= (2, 9)
    except (PackageNotFoundError, ValueError):
        newer = False
    return {} if newer else {"TORCH_NCCL_TRACE_BUFFER_SIZE": "2000", "TORCH_NCCL_DUMP_ON_TIMEOUT": "1"}


def _torchrun_says(place: LocalJob, rank: int, attempt: int) -> dict[str, str]:
    """What torchrun tells a rank of itself (torch/distributed/run.py), for scripts and libraries that ask for it.

    What a torchrun around us has said of its own ranks would otherwise be taken for ours: with its
    ``TORCHELASTIC_USE_AGENT_STORE`` nobody would open the store that all wait for.
    """
    return {
        **dict.fromkeys(("RANK", "ROLE_RANK", "LOCAL_RANK"), str(rank)),
        **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(place.ranks)),
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "TORCHELASTIC_RESTART_COUNT": str(attempt),
        "TORCHELASTIC_MAX_RESTARTS": MAX_RESTARTS,
        "TORCHELASTIC_RUN_ID": place.job,
        "TORCHELASTIC_USE_AGENT_STORE": "False",
    }


def exit_code(code: int) -> int:
    """What a shell would show for `subprocess`'s code.

    Examples
    --------
    >>> exit_code(-9), exit_code(3)
    (137, 3)
    """
    return 128 - code if code < 0 else code


def check_command(command: Sequence[str]) -> tuple[str, ...]:
    """`command` as it will be run; with plain ``python`` as the interpreter that runs us."""
    first = sys.executable if command[0] in ("python", "python3") else command[0]
    return (first, *command[1:])
