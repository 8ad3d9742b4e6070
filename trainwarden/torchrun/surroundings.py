"""What ranks find around them: the run folder, the hook's environment, plans of micro-batches, facts for the agent.

A disk may be full or stand still for ever: what is written here, no rank and no beat waits for.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import re
import shutil
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Collection, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import trainwarden
from trainwarden import rundir
from trainwarden.checkpoints.newest import Search, words
from trainwarden.hook import headers_in
from trainwarden.torchrun.exits import Exit
from trainwarden.torchrun.files import opened, put_whole, read_part
from trainwarden.torchrun.memory import STORE, MemoryFolder

log = logging.getLogger("trainwarden.torchrun")

LOOK_S: Final = 2.0  # between two looks for a checkpoint
CLOSE_S: Final = 2.0  # what is not written by then at the end of a job is left out
LOOKED_S: Final = 10.0  # shared storage is read within a second; a folder that takes longer keeps no job down
SEARCH_S: Final = 60.0  # a look that has not ended by then is given up, and its thread left behind
_NO_NAME: Final = re.compile(r"[^A-Za-z0-9._-]+")


def name_of(text: str, otherwise: str) -> str:
    """`text` as a name of a job or node in records.

    Examples
    --------
    >>> name_of("llama 70b/run 3", "job"), name_of("--", "job")
    ('llama-70b-run-3', 'job')
    """
    return _NO_NAME.sub("-", text).strip("-._")[:128] or otherwise


def job_of(run_id: str) -> str:
    """The job that torchrun calls `run_id`; one without ``--rdzv-id``, to torchrun "none", is "job" as in our settings.

    Examples
    --------
    >>> job_of("none"), job_of("llama")
    ('job', 'llama')
    """
    return name_of("" if run_id == "none" else run_id, "job")


def node_of(environ: MutableMapping[str, str]) -> str:
    """This node's name, the same as in the records of its agent."""
    return name_of(environ.get("TRAINWARDEN_NODE") or socket.gethostname(), "node")


class Surroundings:
    """The run folder of this node, one of `environ`'s or our own; and what is put there.

    Parameters
    ----------
    environ : mapping
        torchrun's own, which its ranks inherit.
    checkpoint : callable
        Told the newest whole checkpoint in the folder ``TRAINWARDEN_CHECKPOINTS``, whenever it is another one.
    alone : bool
        Whether the job has this node alone.
    keeper : callable
        Told where the keeper of one of several nodes is (`trainwarden.torchrun.memory`).
    """

    def __init__(
        self, job: str, node: str, environ: MutableMapping[str, str], checkpoint: Callable[[dict[str, Any]], None],
        *, alone: bool = True, keeper: Callable[[dict[str, Any]], None] = lambda found: None,
    ) -> None:  # fmt: skip
        given = environ.get("TRAINWARDEN_RUN_DIR")
        self.own = given is None
        # Whoever watches a folder of theirs, as `trainwarden watch` does, has a name of its own for the job.
        self.job = job if self.own else name_of(environ.get("TRAINWARDEN_JOB", job), job)
        self.node, self._environ, self._checkpoint = node, environ, checkpoint
        self.run_dir = Path(given) if given else _made(job)
        self._over, self._wake = threading.Event(), threading.Event()
        self._looks = threading.Condition()
        self._asked = self._answered = 0
        self._unwritten: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._writer: threading.Thread | None = None
        with suppress(OSError):
            (self.run_dir / rundir.HOOK).mkdir(mode=0o700, parents=True, exist_ok=True)
            self._write_place()
        self._folder = store = environ.get(STORE) or environ.get("TRAINWARDEN_CHECKPOINTS")
        self._passed_over = ""
        self._memory: MemoryFolder | None = None
        if environ.get(STORE) and store:
            self._memory = MemoryFolder(
                self.job, store, environ, self.run_dir, node=node, alone=alone, found=keeper
            )  # fmt: skip

    @property
    def looks(self) -> bool:
        """Whether a folder of checkpoints was named."""
        return bool(self._folder)

    def start(self) -> None:
        """Look for checkpoints in the background."""
        if self._memory is not None:
            self._memory.start()
        if self._folder:
            threading.Thread(
                target=self._look, args=(Path(self._folder),), name="trainwarden-look", daemon=True
            ).start()

    def look_again(self) -> None:
        """Look for checkpoints at once, and wait for that look: the next round goes on from the newest."""
        if not self._folder:
            return
        with self._looks:
            self._asked = asked = self._asked + 1
            self._wake.set()
            self._looks.wait_for(lambda: self._answered >= asked, LOOKED_S)

    def tell_keeper(self, said: dict[str, Any]) -> None:
        """Tell this node's keeper by which ``host`` others reach it, or the ``ring`` of the newest round."""
        if (memory := self._memory) is not None:
            self._write_later(lambda: memory.tell(said))

    def keep_soon(self) -> None:
        """Have what the ranks save now brought to where it outlives this node."""
        if (memory := self._memory) is not None:
            threading.Thread(target=memory.keep_soon, name="trainwarden-keep", daemon=True).start()

    def fill(
        self, key: str, number: int, resume: str | None, overtaken: Callable[[], bool]
    ) -> tuple[str | None, int | None]:
        """From what the ranks go on that start now in the round `number`: `resume`, or what memory has, with its step.

        Raises
        ------
        NotFilled
            If other nodes go on from a checkpoint in memory that cannot be had here.
        Overtaken
            Once `overtaken` says so.
        """
        return (resume, None) if self._memory is None else self._memory.fill(key, number, overtaken)

    def prepare(self, attempt: int, resume: str | None) -> None:
        """Set the environment of the ranks that start now."""
        environ, inject = self._environ, str(Path(trainwarden.__file__).with_name("inject"))
        paths = [inject, *(one for one in environ.get("PYTHONPATH", "").split(os.pathsep) if one and one != inject)]
        environ.update({
            "PYTHONPATH": os.pathsep.join(paths),
            "TRAINWARDEN_JOB": self.job,
            "TRAINWARDEN_NODE": self.node,
            "TRAINWARDEN_RUN_DIR": str(self.run_dir.absolute()),
            "TRAINWARDEN_HOOK_DIR": str((self.run_dir / rundir.HOOK).resolve()),
            "TRAINWARDEN_ATTEMPT": str(attempt),
            "TRAINWARDEN_ENDS_WITH": str(os.getpid()),
        })  # fmt: skip
        environ.pop("TRAINWARDEN_RESUME_FROM", None)
        if resume is not None:
            environ["TRAINWARDEN_RESUME_FROM"] = resume

    def put_splits(self, splits: list[dict[str, Any]], done: Callable[[int], None]) -> None:
        """Have ranks read the newest of `splits`; `done` is told its number once they can."""
        *before, newest = splits
        plan = {
            **newest, "history": [{"number": one["number"], "micro_batches": one["micro_batches"]} for one in before],
        }  # fmt: skip
        self._write_later(lambda: self._put(plan, done))

    def _put(self, plan: dict[str, Any], done: Callable[[int], None]) -> None:
        path = self.run_dir / rundir.PLAN
        with suppress(OSError):
            put_whole(path, json.dumps(plan))
            done(plan["number"])

    def first_steps(self, pids: Collection[int]) -> list[int | None] | None:
        """The first step of each rank, None where the script numbers none; None until all have finished one."""
        found = {header.pid: header for header in headers_in(self.run_dir / rundir.HOOK) if header.pid in pids}
        if len(found) < len(pids) or not all(header.recorded for header in found.values()):
            return None
        return [header.first_step for header in found.values()]

    def placed(self, attempt: int, node_rank: int, nodes: int, why: str) -> None:
        """Let whoever has started this torchrun read its place in the round that begins now."""
        facts = {"attempt": attempt, "node_rank": node_rank, "nodes": nodes, "why": why}
        self._write_later(lambda: self._write_place(**facts))

    def _write_place(self, **facts: Any) -> None:
        with suppress(OSError):
            put_whole(self.run_dir / rundir.TORCHRUN, json.dumps({"pid": os.getpid(), **facts}))

    def started(self, attempt: int, why: str) -> None:
        """Tell the node's agent that all ranks have started again; all nodes tell one and the same."""
        operation = f"{self.job}/round/{attempt + 1}"
        facts = {"attempt": attempt, "ranks": "all", "operation": operation}
        self._append_later(*(
            (f"restart/{operation}/{stage}", "restart", why, {**facts, "stage": stage}) for stage in ("started", "done")
        ))  # fmt: skip

    def note(self, operation: dict[str, Any], stage: str) -> None:
        """Tell the node's agent what was asked of the job, and by whom."""
        report, kind = operation["report"], operation["kind"]
        fields = {
            "operation": report["operation"], "stage": stage, "verb": kind, "by": operation.get("by", ""),
            "why": operation.get("why", ""),
        }  # fmt: skip
        target = operation.get("target", "")
        fields.update({"target": target} if target else {})
        said = f"{kind}{' of ' + target if target else ''}, asked for by {fields['by'] or 'an unnamed person'}: {stage}"
        self._append_later((f"operation/{report['operation']}/{stage}", "operation", said, fields))

    def _append_later(self, *events: tuple[str, str, str, dict[str, Any]]) -> None:
        for event in events:
            self._write_later(lambda event=event: self._append(*event))  # type: ignore[misc]

    def _write_later(self, write: Callable[[], None]) -> None:
        """Write in the order of the calls. A disk that stands still holds up neither ranks nor the connection."""
        if self._writer is None:
            self._writer = threading.Thread(target=self._write, name="trainwarden-writer", daemon=True)
            self._writer.start()
        self._unwritten.put(write)

    def _write(self) -> None:
        while (write := self._unwritten.get()) is not None:
            write()

    def ended(self, end: Exit) -> None:
        """Tell the node's agent how a rank has ended."""
        incarnation = self._incarnation(end)
        fields: dict[str, Any] = {"pid": end.pid, "incarnation": incarnation}
        fields.update(
            {"signal": end.signal} if end.signal is not None else {} if end.code is None else {"code": end.code}
        )
        fields.update({name: True for name in ("asked", "renewed") if getattr(end, name)})
        name, said = f"exit/{self.node}/{incarnation}", f"rank {end.rank} {end.how}"
        self._append(name, "process_exit", said, fields, time_s=end.at_s, rank=end.rank)

    def _append(self, name: str, kind: str, message: str, fields: dict[str, Any], **more: Any) -> None:
        event = {
            "type": "event", "id": name, "job": self.job, "node": self.node, "time_s": time.time(), "kind": kind,
            "message": message, "fields": fields, **more,
        }  # fmt: skip
        with suppress(OSError):
            file = opened(self.run_dir / rundir.EVENTS, os.O_APPEND)
            try:
                os.write(file, json.dumps(event).encode() + b"\n")
            finally:
                os.close(file)

    def close(self) -> None:
        """Ranks have ended for good."""
        self._over.set()
        self._wake.set()
        if self._writer is not None:
            self._unwritten.put(None)
            self._writer.join(CLOSE_S)
        if self._memory is not None:
            self._memory.close()
        with suppress(OSError):
            (self.run_dir / rundir.TORCHRUN).unlink()
        if self.own:
            rundir.leave_memory(self.run_dir)
            shutil.rmtree(self.run_dir, ignore_errors=True)

    def _incarnation(self, end: Exit) -> str:
        """The hook's own name for the process, so that all records agree; one of ours where it has left no file."""
        folder = self.run_dir / rundir.HOOK
        headers = headers_in(folder, f"rank-*-{end.pid}*.hook")
        newest = next((header for header in reversed(headers) if header.pid == end.pid), None)
        if newest is not None:
            return newest.incarnation
        begun = f"rank-{end.rank}-{end.pid}.begun"  # of a rank that has not trained (`trainwarden.inject`)
        with suppress(OSError, ValueError, KeyError, TypeError):
            first = read_part(folder / begun, 0, 4096).partition(b"\n")[0]
            return f"{end.pid}-t{json.loads(first)['ticks']}"
        return f"{end.pid}-{round(end.at_s * 1000)}"

    def _look(self, folder: Path) -> None:
        """Say which checkpoint is the newest whole one, again and again."""
        seen: tuple[int, str, int | None] | None = None
        while not self._over.is_set():
            asked = self._asked
            now = self._newest(folder)
            if now is not None and now != seen:
                self._checkpoint({"step": now[0], "path": now[1], "outlives": now[2]})
                seen = now
            with self._looks:
                self._answered = asked
                self._looks.notify_all()
            self._wake.wait(LOOK_S)
            self._wake.clear()

    def _newest(self, folder: Path) -> tuple[int, str, int | None] | None:
        """Step and path of the newest whole checkpoint, and the newest step that outlives this node."""
        if self._memory is not None:
            return self._memory.newest()
        search = Search(folder)
        search.wait(SEARCH_S)
        found = search.found if search.done else None
        if found is not None and found.beside not in ("", self._passed_over):
            log.warning("trainwarden: checkpoints: %s", found.beside)
            self._passed_over = found.beside
        return None if found is None else (found.step, words(found.path.absolute()), found.step)


def _made(job: str) -> Path:
    """A run folder of our own; where none can be made, a name at which nothing can be written."""
    try:
        made = Path(tempfile.mkdtemp(prefix=f"trainwarden-{job[:60]}-"))
        rundir.create(made)
    except OSError:
        return Path(os.devnull, "run")
    return made
