"""The part of trainwarden that lives inside a training process; one file, standard library only, Linux.

It comes in by environment alone: torch (2.5 and newer) calls the entry point `autoload` at the end of
``import torch``; ``inject/sitecustomize.py`` on PYTHONPATH does it for older ones. It does nothing unless
``TRAINWARDEN_HOOK_DIR`` names a folder, and writes nothing before the first collective, backward pass or
explicit mark, so launchers and data-loader workers leave no trace. Nothing here raises into training,
blocks or makes a system call on a step's path: a step is a few stores into a memory-mapped file,
``rank-<rank>-<pid>.hook``, which outlives SIGKILL and tells the agent what the process is doing now.

A rank of several also has one thread. It sleeps in the kernel, in a read of the pipe ``.ask``, until the agent
finds the job standing still and writes a byte; then it leaves the recorder of collective calls in ``.calls``.

What ends a step, strongest first: `iteration()` marks; a ``torch.optim`` step after a backward pass; a
hand-written update, known by "backward, then waits, then backward" again and again; a lone backward pass in
a process without collectives or optimizer; the period of the sequence of collective calls (after Falcon,
section 4.2). A weaker source is believed only while no stronger one has been seen, and what it saw before
it was believed is written out then, so that no step is lost.

Duration is compute plus wait plus pause. Waits: collective calls and ``Work.wait`` on the training thread,
``wait_tensor``, and for DDP, whose all-reduces never pass Python, the time from an engine callback queued
before DDP's own to the return of backward. Pauses: ``torch.save``, distributed checkpoints, the data
loader's ``__next__``, and evaluation from ``model.eval()`` to ``model.train()``. Compute is the rest.

Blind: on CUDA, waits on the host return at once, so most waiting shows as compute (basis ``host``); waits
inside compiled graphs, replayed CUDA graphs and polling of ``is_completed`` are not seen.

Frames of this file carry a name that starts with ``<frozen importlib``: torch.compile leaves those alone.
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import functools
import json
import mmap
import os
import struct
import sys
import threading
import time
import types
import weakref
from _thread import start_new_thread as _start_thread
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

# ---------------------------------------------------------------- the file: 64 header words, then two rings
MAGIC = int.from_bytes(b"TWHOOK01", "little")
VERSION = 1
Phase = Literal["start", "compute", "wait", "checkpoint", "data", "evaluation", "exit"]
PHASES: tuple[Phase, ...] = ("start", "compute", "wait", "checkpoint", "data", "evaluation", "exit")
_START, _COMPUTE, _WAIT, _CHECKPOINT, _DATA, _EVALUATION, _EXIT = range(7)
SOURCES = ("none", "calls", "backward", "by_hand", "optimizer", "marks")
_NONE, _CALLS_PERIOD, _LONE, _BY_HAND, _OPTIMIZER, _MARKS = range(6)
ROLES = ("", "collective", "p2p:first", "p2p:last", "p2p:middle")

(
    _MAGIC, _VERSION, _PID, _RANK, _WORLD, _START_NS, _OFFSET_NS, _PHASE, _CALLS, _P2P, _COUNT, _STEP, _STEP_END,
    _MICRO, _SOURCE, _PLAN, _PLAN_STEP, _PAUSES, _ROLE, _OWN_NS, _CODE, _ERRORS, _ATTEMPT,
) = range(23)  # fmt: skip
_NO_CODE = -(2**62)
_HEADER_BYTES = 512
RING = 4096
_STEP_WORDS = struct.Struct("@10q")  # index, step, end, duration, compute, wait, pause, micro-batches, source, index
PAUSE_RING = 256
_PAUSE_WORDS = struct.Struct("@6q")  # index, phase, begin, duration, step, index
_PAUSES_AT = _HEADER_BYTES + RING * _STEP_WORDS.size
FILE_BYTES = _PAUSES_AT + PAUSE_RING * _PAUSE_WORDS.size
_HEADER = struct.Struct("@64q")
_LONG_PAUSE_NS = 500_000_000  # pauses that long are worth an event
_MAX_RANK = 1_000_000
_MAX_PLAN_BYTES = 8_000_000


class Header(NamedTuple):
    """What one process says of itself; times are wall seconds, None is unknown."""

    pid: int
    rank: int
    world_size: int
    start_s: float
    incarnation: str
    phase: Phase
    phase_since_s: float
    calls: int
    p2p_calls: int
    recorded: int
    step: int
    step_end_s: float | None
    micro_batches: int | None
    source: str
    plan: int
    plan_step: int
    pauses: int
    role: str
    own_s: float
    exit_code: int | None
    errors: int
    attempt: int


class Step(NamedTuple):
    """One finished step; `serial` counts the steps of this process from 1."""

    serial: int
    step: int
    end_s: float
    duration_s: float
    compute_s: float
    wait_s: float
    pause_s: float
    micro_batches: int | None
    source: str


class Pause(NamedTuple):
    """One long pause; `serial` counts those of this process from 1."""

    serial: int
    phase: Phase
    begin_s: float
    duration_s: float
    step: int


def _pread(source: int | str | os.PathLike[str], size: int, at: int) -> bytes:
    if isinstance(source, int):
        return os.pread(source, size, at)
    descriptor = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.pread(descriptor, size, at)
    finally:
        os.close(descriptor)


def read_header(source: int | str | os.PathLike[str]) -> Header | None:
    """The header of a hook file, by path or open descriptor; None if it is none, torn or cut short."""
    try:
        raw = _pread(source, _HEADER_BYTES, 0)
    except OSError:
        return None
    if len(raw) != _HEADER_BYTES:
        return None
    word = _HEADER.unpack(raw)
    phase = word[_PHASE] & 7
    if (
        word[_MAGIC] != MAGIC
        or word[_VERSION] != VERSION
        or phase >= len(PHASES)
        or not 0 < word[_PID] < 2**31
        or not 0 <= word[_RANK] < _MAX_RANK
        or not 0 <= word[_SOURCE] < len(SOURCES)
        or not 0 <= word[_ROLE] < len(ROLES)
        or min(word[_COUNT], word[_PAUSES], word[_CALLS], word[_WORLD], word[_START_NS], word[_STEP]) < 0
    ):
        return None
    offset = word[_OFFSET_NS]
    return Header(
        pid=word[_PID],
        rank=word[_RANK],
        world_size=word[_WORLD],
        start_s=word[_START_NS] / 1e9,
        incarnation=f"{word[_PID]}-{word[_START_NS] // 1_000_000}",
        phase=PHASES[phase],
        phase_since_s=((word[_PHASE] >> 3) + offset) / 1e9,
        calls=word[_CALLS],
        p2p_calls=word[_P2P],
        recorded=word[_COUNT],
        step=word[_STEP],
        step_end_s=(word[_STEP_END] + offset) / 1e9 if word[_STEP_END] else None,
        micro_batches=word[_MICRO] or None,
        source=SOURCES[word[_SOURCE]],
        plan=word[_PLAN],
        plan_step=word[_PLAN_STEP],
        pauses=word[_PAUSES],
        role=ROLES[word[_ROLE]],
        own_s=word[_OWN_NS] / 1e9,
        exit_code=None if word[_CODE] == _NO_CODE else word[_CODE],
        errors=word[_ERRORS],
        attempt=word[_ATTEMPT],
    )


def _read_ring(
    source: int | str | os.PathLike[str], words: struct.Struct, at: int, size: int, after: int, count: int
) -> list[tuple[int, ...]]:
    """Records after index `after` that are whole: both copies of the index are the one expected."""
    rows: list[tuple[int, ...]] = []
    first = max(after, count - size)
    while first < count:
        slot = first % size
        batch = min(count - first, size - slot)
        raw = _pread(source, batch * words.size, at + slot * words.size)
        for row in words.iter_unpack(raw[: len(raw) // words.size * words.size]):
            first += 1
            if row[0] == row[-1] == first:
                rows.append(row)
        if len(raw) < batch * words.size:
            break
    return rows


def read_steps(source: int | str | os.PathLike[str], after: int = 0) -> list[Step] | None:
    """Steps whose serial number is above `after`, oldest first; the ring keeps the newest `RING`.

    Overwritten and torn records are left out. None if the file is no hook file.
    """
    header = read_header(source)
    if header is None:
        return None
    try:
        rows = _read_ring(source, _STEP_WORDS, _HEADER_BYTES, RING, max(0, after), header.recorded)
    except OSError:
        return None
    return [
        Step(
            row[0], row[1], row[2] / 1e9, row[3] / 1e9, row[4] / 1e9, row[5] / 1e9, row[6] / 1e9, row[7] or None,
            SOURCES[row[8]],
        )
        for row in rows
        if 0 <= row[8] < len(SOURCES) and min(row[1:8]) >= 0
    ]  # fmt: skip


def read_pauses(source: int | str | os.PathLike[str], after: int = 0) -> list[Pause] | None:
    """Long pauses whose serial number is above `after`, oldest first; None if the file is no hook file."""
    header = read_header(source)
    if header is None:
        return None
    try:
        rows = _read_ring(source, _PAUSE_WORDS, _PAUSES_AT, PAUSE_RING, max(0, after), header.pauses)
    except OSError:
        return None
    return [
        Pause(row[0], PHASES[row[1]], row[2] / 1e9, row[3] / 1e9, row[4])
        for row in rows
        if 0 <= row[1] < len(PHASES) and min(row[2:5]) >= 0
    ]


# ---------------------------------------------------------------- the hook proper
_Mark = tuple[int, int, int, int]  # time, waits, pauses so far (ns), backward passes so far


class Hook:
    """State of the one hook of this process; an error of its own is counted in the header and goes no further."""

    # More attributes than fit a shared-key dictionary: without slots, access takes twice as long in some processes.
    __slots__ = (
        "ask", "backwards", "base", "buffer", "calls", "candidate", "count", "engine", "evaluating", "events",
        "exit_code", "fault_file", "folder", "fresh", "in_backward", "inside", "live", "mark", "micro",
        "missing", "not_evaluation", "notes", "off", "offset_ns", "optimizers", "own_ns", "owner", "p2p",
        "p2p_mask", "path", "pause_began", "pause_count", "pause_ns", "pause_wait", "pauses", "pending",
        "period", "proven", "rank_known", "replicas", "source", "step", "tail", "unit_ns", "wait_ns",
        "waiting", "waits", "waits_expected", "words",
    )  # fmt: skip

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.live = False  # the file is open
        self.off = False  # a forked child, or the file could not be made
        self.owner = -1  # the training thread; nobody yet
        self.proven = False  # the owner has run a backward pass or set a mark
        self.inside = False  # in a watched wait
        self.path = ""
        self.words: Any = None
        self.buffer: Any = None
        self.base = _START  # phase to go back to after a wait
        self.rank_known = False
        self.wait_ns = self.pause_ns = self.own_ns = 0
        self.unit_ns = 0  # measured cost of one enter and leave
        self.events = 0
        self.calls = self.p2p = self.p2p_mask = 0
        self.count = self.step = self.micro = 0
        self.mark: _Mark = (0, 0, 0, 0)
        self.offset_ns = 0
        self.source = _NONE
        self.optimizers = 0
        # backward pass
        self.backwards = 0
        self.in_backward = False
        self.pending = False  # an optimizer stepped inside backward
        self.tail: tuple[int, int] = (0, 0)
        self.engine: Any = None
        self.replicas: Any = weakref.WeakSet()  # DistributedDataParallel modules
        # weaker sources of step ends
        self.candidate: _Mark | None = None
        self.fresh = False  # a backward pass since the last candidate was used
        self.waits = self.waits_expected = 0  # since a backward pass began; of a step made by hand
        self.waiting: list[_Mark] = []  # candidates not yet believed
        self.period = CallPeriod()
        # pauses
        self.pauses = self.pause_count = 0
        self.pause_began = self.pause_wait = 0
        self.evaluating: Any = None  # (phase before, begin, weak reference to the module)
        self.not_evaluation: Any = weakref.WeakSet()
        self.missing = list(_PATCHES)
        self.fault_file: Any = None
        self.exit_code: int | None = None
        self.notes = 0
        self.ask = -1  # the pipe on which the agent asks for the recorded calls

    # ------------------------------------------------------------ coming to life
    def activate(self) -> bool:
        """Open the file of this rank; called by the first thing worth noting. False if that cannot be."""
        if self.live or self.off:
            return False
        try:
            self.owner = threading.get_ident()
            self._open_file()
            self.live = True
            self._calibrate()
            self.install()
            self._arm_last_words()
            self._await_requests()
        except Exception:
            self.off, self.live, self.owner = True, False, -1
            with contextlib.suppress(OSError):
                os.unlink(self.path + ".hook")
        return self.live

    def _open_file(self) -> None:
        rank, world, self.rank_known = _who_am_i()
        self.path = os.path.join(self.folder, f"rank-{rank}-{os.getpid()}")
        descriptor = os.open(self.path + ".hook", os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            # Really allocated: a full tmpfs must fail here and not kill the process by SIGBUS at a later store.
            os.posix_fallocate(descriptor, 0, FILE_BYTES)
            self.buffer = mmap.mmap(descriptor, FILE_BYTES)
        finally:
            os.close(descriptor)
        words = self.words = memoryview(self.buffer)[:_HEADER_BYTES].cast("q")
        now, wall = time.monotonic_ns(), time.time_ns()
        self.mark = (now, 0, 0, 0)
        self.offset_ns = wall - now
        words[_VERSION], words[_PID], words[_RANK], words[_WORLD] = VERSION, os.getpid(), rank, world
        words[_START_NS], words[_OFFSET_NS], words[_PHASE] = _process_start_ns(wall), wall - now, now << 3 | self.base
        words[_CODE], words[_ATTEMPT] = _NO_CODE, _integer("TRAINWARDEN_ATTEMPT") or 0
        words[_STEP], words[_MICRO] = self.step, self.micro
        words[_MAGIC] = MAGIC  # last, so that a reader never takes half a header for one

    def _failed(self) -> None:
        """Count an error of our own; it must go no further."""
        if self.words is not None:
            self.words[_ERRORS] += 1

    def _calibrate(self) -> None:
        """What one watched call costs on this machine, so that the hook can state its own overhead."""
        began = time.perf_counter_ns()
        for _ in range(32):
            self.leave(self.enter())
        self.unit_ns = (time.perf_counter_ns() - began) // 32
        self.wait_ns = self.events = 0
        self.candidate = None

    def settle_rank(self) -> None:
        """Take the rank from torch.distributed once it is known, where the environment did not say."""
        rank, world, known = _who_am_i()
        self.rank_known = True  # asked once, at the first collective: later it will not be known any better
        self.words[_WORLD] = world
        if known and rank != self.words[_RANK]:
            path = os.path.join(self.folder, f"rank-{rank}-{os.getpid()}")
            for kind in (".fault", ".last", ".ask", ".hook"):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(self.path + kind, path + kind)
            self.words[_RANK], self.path = rank, path
        self._await_requests()

    def install(self) -> None:
        """Put the watches in place whose modules have been imported by now."""
        for patch in list(self.missing):
            try:
                if patch(self):
                    self.missing.remove(patch)
            except Exception:
                self.missing.remove(patch)

    # ------------------------------------------------------------ waits
    def enter(self) -> int:
        """A wait begins on this thread; its start in ns, or 0 if it is not one to watch."""
        if _thread() != self.owner and not (self.owner == -1 and self.activate()):
            return 0
        if self.inside:
            return 0
        self.inside = True
        now = _clock()
        self.words[_PHASE] = now << 3 | _WAIT
        return now

    def leave(self, began: int) -> None:
        """The wait that began at `began` ended."""
        now = _clock()
        self.inside = False
        self.words[_PHASE] = now << 3 | self.base
        self.events += 1
        if self.pauses:
            self.pause_wait += now - began
            return
        self.wait_ns += now - began
        if self.source < _OPTIMIZER and not self.p2p_mask:
            self._waited(now)

    def _waited(self, now: int) -> None:
        """A wait ended that may be the last one of a step made by hand."""
        try:
            self.waits += 1
            if self.fresh:
                self.candidate = (now, self.wait_ns, self.pause_ns, self.backwards)
                if self.waits == self.waits_expected and self.source == _BY_HAND:
                    self._use_candidate()
        except Exception:
            self._failed()

    def _use_candidate(self) -> None:
        end, self.candidate, self.fresh = self.candidate, None, False
        if end is not None:
            self.close(end)

    def called(self, op: int, args: tuple[Any, ...], began: int) -> None:
        """A collective or point-to-point call `op` was made and has returned."""
        try:
            if op <= _RECEIVE:
                self._sent_or_received(op, began)
            if not self.rank_known:
                self.settle_rank()
            if self.source <= _LONE and not self.pauses:
                self._listen(op, args, began)
        except Exception:
            self._failed()

    def _sent_or_received(self, op: int, began: int) -> None:
        """Note what tells the stage of a pipeline: the first call of a step, and a send before any backward pass."""
        self.p2p += 1
        self.words[_P2P] = self.p2p
        if not self.p2p_mask:
            self.p2p_mask = op
        elif self.p2p_mask == _RECEIVE and op == _SEND and self.backwards == self.mark[3]:
            self.p2p_mask = _SEND | _RECEIVE
        if self.candidate is not None and self.candidate[0] >= began:
            self.candidate = None  # a step does not end with a wait for the neighbour

    def _listen(self, op: int, args: tuple[Any, ...], began: int) -> None:
        """Feed the period finder, unless an optimizer can be expected to step."""
        if self.optimizers and self.backwards:
            return
        if self.source == _LONE:
            self.source = self.words[_SOURCE] = _NONE
            self.waiting.clear()
        mark = (_clock(), self.wait_ns, self.pause_ns, self.backwards)
        patience = _CALLS_TO_BELIEVE if self.optimizers else 0
        for end in self.period.add((op, _numel(args)), began, mark, patience):
            self.source = _CALLS_PERIOD
            if end[0] > self.mark[0]:
                self.close(end)

    # ------------------------------------------------------------ backward passes
    def begin_backward(self, roots: Any) -> Any:
        """An outermost backward pass begins; what `end_backward` needs, None if it is not one to watch."""
        if _thread() != self.owner and not self._take_over():
            return None
        if self.inside or self.in_backward:
            return None
        try:
            now = _clock()
            self.proven = True
            if self.evaluating is not None:
                self._no_evaluation()
            if self.base == _START:
                self.base = _COMPUTE
                self.words[_PHASE] = now << 3 | _COMPUTE
            if self.source < _OPTIMIZER:
                self._weigh_candidate()
            self.fresh = True
            self.backwards += 1
            self.tail = (0, 0)
            handle = self._hook_root(roots)
            self.in_backward = True
            self.own_ns += _clock() - now
            return handle
        except Exception:
            self._failed()
            return None

    def _take_over(self) -> bool:
        """True if this thread is, or just became, the training thread: the first to run a backward pass."""
        if self.off:
            return False
        if not self.live:
            return self.activate()
        if self.proven or self.inside or self.pauses:
            return False
        self.owner = _thread()
        return True

    def _hook_root(self, roots: Any) -> Any:
        """Have the engine call us back just before DDP's own final callback, where there is DDP."""
        if not self.replicas:
            return _NO_HANDLE
        compiled = sys.modules.get("torch._dynamo.compiled_autograd")
        if compiled is not None and getattr(compiled, "compiled_autograd_enabled", False):
            return _NO_HANDLE  # it would trace the callback into its graph
        root = roots[0] if isinstance(roots, (tuple, list)) else roots
        node = getattr(root, "grad_fn", None) or getattr(root, "node", None)
        if node is None:
            return _NO_HANDLE
        return node.register_prehook(self._on_root)

    def _on_root(self, _grads: Any) -> None:
        with contextlib.suppress(Exception):
            self.engine.queue_callback(self._on_tail)

    def _on_tail(self) -> None:
        if self.in_backward and not self.tail[0]:
            now = _clock()
            self.tail = (now, self.wait_ns)
            self.words[_PHASE] = now << 3 | _WAIT

    def end_backward(self, handle: Any) -> None:
        """The backward pass that gave `handle` returned or raised."""
        try:
            now = _clock()
            handle.remove()
            self.in_backward = False
            began, waited = self.tail
            if began:
                self.words[_PHASE] = now << 3 | self.base
                # FSDP's final callback waits through Work.wait, which has been counted already.
                if waited == self.wait_ns and not self.pauses:
                    self.wait_ns += now - began
                    # Under no_sync the engine has nothing to wait for.
                    if self.source < _OPTIMIZER and any(module.require_backward_grad_sync for module in self.replicas):
                        self._waited(now)
            if self.source < _OPTIMIZER and not self.calls and not self.pauses and self.candidate is None:
                self.candidate = (now, self.wait_ns, self.pause_ns, self.backwards)
                if self.source == _LONE:
                    self._use_candidate()
            if self.pending:
                self.pending = False
                self.optimizer_stepped()
            self.own_ns += _clock() - now
        except Exception:
            self._failed()

    def _weigh_candidate(self) -> None:
        """A backward pass begins: was the last wait the end of a step made by hand?"""
        seen, self.waits = self.waits, 0
        if self.candidate is None:
            self.waits_expected = max(self.waits_expected, seen) if self.waits_expected else 0
            return
        lone = not self.calls
        if self.source in (_BY_HAND, _LONE):
            self.waits_expected = seen
            self._use_candidate()
            return
        self.waiting.append(self.candidate)
        self.candidate = None
        patience = _OPTIMIZER_PATIENCE if self.optimizers else (_LONE_REPEATS if lone else _HAND_REPEATS)
        if len(self.waiting) >= patience:
            self.source = _LONE if lone else _BY_HAND
            self.waits_expected = seen
            for earlier in self.waiting:
                if earlier[0] > self.mark[0]:
                    self.close(earlier)
            self.waiting.clear()

    # ------------------------------------------------------------ ends of steps
    def optimizer_stepped(self, *_ignored: Any) -> None:
        """Post-hook of every torch.optim step; further optimizers of the same step do not end another one."""
        try:
            if self.source == _MARKS or (_thread() != self.owner and not self._take_over()):
                return
            if self.in_backward:
                self.pending = True
            elif self.backwards > self.mark[3]:
                if self.source != _OPTIMIZER:
                    self.source = _OPTIMIZER
                    self.waiting.clear()
                    self.period.forget()
                self.close(self._here())
        except Exception:
            self._failed()

    def close(self, end: _Mark, number: int | None = None) -> None:
        """Write the step that ended at `end`; what came after belongs to the next one."""
        now, wait_ns, pause_ns, backwards = end
        began, wait_before, pause_before, backwards_before = self.mark
        self.mark = end
        wait_ns -= wait_before
        pause_ns -= pause_before
        compute_ns = now - began - wait_ns - pause_ns
        words = self.words
        step = self.step if number is None else number
        serial = self.count + 1
        if serial <= _SETTLING_STEPS or not serial & 15:
            self._settle()
        _pack_step(
            self.buffer, _HEADER_BYTES + (self.count % RING) * _STEP_BYTES, serial, step, now + self.offset_ns,
            now - began, compute_ns if compute_ns > 0 else 0, wait_ns, pause_ns,
            self.micro or backwards - backwards_before, self.source, serial,
        )  # fmt: skip
        words[_COUNT] = self.count = serial
        words[_STEP] = self.step = step + 1
        words[_STEP_END] = now
        words[_OWN_NS] = self.own_ns = self.own_ns + self.events * self.unit_ns
        self.events = self.p2p_mask = 0

    def _settle(self) -> None:
        """What becomes clear over the first steps (late imports, role, source), and the wall clock, which may step."""
        words = self.words
        words[_OFFSET_NS] = self.offset_ns = time.time_ns() - _clock()
        if self.missing and self.count < _SETTLING_STEPS:
            self.install()
        words[_SOURCE] = self.source
        if self.p2p_mask:
            words[_ROLE] = 1 + self.p2p_mask  # first, last, middle: see ROLES
        elif not words[_ROLE] and words[_WORLD] > 1:
            words[_ROLE] = 1
        if self.base == _START:
            self.base = _COMPUTE
            words[_PHASE] = _clock() << 3 | _COMPUTE

    def marked(self, number: int | None) -> None:
        """An explicit end of an iteration."""
        if _thread() != self.owner and not self._take_over():
            return
        if self.source != _MARKS:
            self.source = self.words[_SOURCE] = _MARKS
            self.waiting.clear()
            self.proven = True
        self.close(self._here(), number)

    def _here(self) -> _Mark:
        """This moment; a pause that is under way is cut in two by it."""
        now = _clock()
        if self.pauses:
            self.pause_ns += now - self.pause_began
            self.pause_began, self.pause_wait = now, 0
        return now, self.wait_ns, self.pause_ns, self.backwards

    def number(self, step: int) -> None:
        """The step in progress is the job's own `step`."""
        if step >= 2**62:
            return
        self.step = step
        if self.live:
            self.words[_STEP] = step

    # ------------------------------------------------------------ pauses
    def begin_pause(self, phase: int) -> tuple[int, int] | None:
        """A pause begins on the training thread; None elsewhere."""
        if _thread() != self.owner or self.inside:
            return None
        now = _clock()
        before = self.base
        if not self.pauses:
            self.pause_began = now
            self.pause_wait = 0
        self.pauses += 1
        self.base = phase
        self.words[_PHASE] = now << 3 | phase
        return before, now

    def end_pause(self, token: tuple[int, int], phase: int) -> None:
        """The pause that gave `token` ended."""
        now = _clock()
        before, began = token
        self.pauses -= 1
        if not self.pauses:
            self.pause_ns += now - self.pause_began
        self.base = before
        self.words[_PHASE] = now << 3 | before
        if now - began >= _LONG_PAUSE_NS:
            try:
                self._keep_pause(phase, began, now - began)
            except Exception:
                self._failed()

    def _keep_pause(self, phase: int, began: int, took: int) -> None:
        serial = self.pause_count + 1
        at = _PAUSES_AT + (self.pause_count % PAUSE_RING) * _PAUSE_WORDS.size
        _PAUSE_WORDS.pack_into(self.buffer, at, serial, phase, began + self.offset_ns, took, self.step, serial)
        self.words[_PAUSES] = self.pause_count = serial

    def mode_changed(self, module: Any, training: bool) -> None:
        """``module.train(training)`` is about to run, outermost, on the training thread."""
        if training:
            if self.evaluating is not None:
                token, self.evaluating = self.evaluating, None
                self.end_pause(token[:2], _EVALUATION)
        elif self.evaluating is None and self.count and module.training and module not in self.not_evaluation:
            begun = self.begin_pause(_EVALUATION)
            if begun is not None:
                self.evaluating = (*begun, weakref.ref(module))

    def _no_evaluation(self) -> None:
        """A backward pass came after ``eval()``: that module is a frozen part of the model, or train() is missing."""
        before, began, module = self.evaluating
        self.evaluating = None
        self.pauses -= 1
        self.base = before
        if not self.pauses:
            self.wait_ns += self.pause_wait
            self.words[_PHASE] = _clock() << 3 | before
        if module() is not None and _clock() - began < _LONG_PAUSE_NS:
            self.not_evaluation.add(module())

    # ------------------------------------------------------------ last words
    def _arm_last_words(self) -> None:
        previous = sys.excepthook

        def on_exception(kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
            self.exception(kind, error, trace)
            previous(kind, error, trace)

        sys.excepthook = on_exception
        leave = sys.exit

        @functools.wraps(leave)
        def on_sys_exit(status: Any = None, /) -> Any:
            if self.live and threading.current_thread() is threading.main_thread():
                self.exit_code = 0 if status is None else (status if isinstance(status, int) else 1)
            leave(status)

        sys.exit = on_sys_exit
        atexit.register(self.at_exit)
        if not faulthandler.is_enabled():
            self.fault_file = open(self.path + ".fault", "w", encoding="utf-8")  # noqa: SIM115 - for life
            faulthandler.enable(self.fault_file, all_threads=False)

    def at_exit(self) -> None:
        """The interpreter ends by itself."""
        try:
            if not self.live:
                return
            if self.fault_file is not None:
                faulthandler.disable()  # reading thread states that are being freed would turn an abort into a crash
            if self.source in (_BY_HAND, _LONE) and self.candidate is not None and self.words[_CODE] == _NO_CODE:
                self.close(self.candidate)
            if self.words[_CODE] == _NO_CODE:
                self.words[_CODE] = self.exit_code or 0
            self.words[_PHASE] = _clock() << 3 | _EXIT
            self.base = _EXIT
        except Exception:
            self._failed()

    def exception(self, kind: type[BaseException], error: BaseException, trace: types.TracebackType | None) -> None:
        """Tell of an uncaught exception: by datagram at once, and by a file in case nobody listens."""
        try:
            if not self.live:
                return
            self.words[_CODE] = 130 if issubclass(kind, KeyboardInterrupt) else 1
            text = f"{kind.__name__}: {error}"
            self.note(
                {
                    "type": "exception",
                    "exception": kind.__name__,
                    "message": text[:2000],
                    "frame": _user_frame(trace),
                    "step": self.step,
                }
            )
        except Exception:
            self._failed()

    def note(self, fact: dict[str, Any]) -> None:
        """Keep one rare fact in the notes file and send it to the agent; never waits for the agent."""
        self.notes += 1
        fact = {
            **fact,
            "file": os.path.basename(self.path),
            "number": self.notes,
            "pid": self.words[_PID],
            "rank": self.words[_RANK],
            "incarnation": f"{self.words[_PID]}-{self.words[_START_NS] // 1_000_000}",
            "time_s": time.time(),
        }
        line = json.dumps(fact).encode()
        descriptor = os.open(self.path + ".last", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line + b"\n")
        finally:
            os.close(descriptor)
        with contextlib.suppress(OSError):
            send_datagram(self.folder, line)

    # ------------------------------------------------------------ the recorder of collective calls
    def _await_requests(self) -> None:
        """Make the pipe and start the thread that sleeps on it; where nobody can be waited for there is neither."""
        if self.ask >= 0 or self.words[_WORLD] < 2:
            return
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self.path + ".ask")
            os.mkfifo(self.path + ".ask", 0o600)
            # Both ends, so that opening does not wait for the agent and its leaving is no end of file.
            self.ask = os.open(self.path + ".ask", os.O_RDWR | os.O_CLOEXEC)
            _start_thread(self._answer_requests, ())  # threading's own start waits for the thread to run
        except (OSError, RuntimeError):
            self._failed()

    def _answer_requests(self) -> None:
        """Body of the thread."""
        while True:
            try:
                asked = os.read(self.ask, 4096)  # many requests that wait are one
            except OSError:
                return
            try:
                if not asked or self.off:
                    return
                self.leave_calls()
            except Exception:
                self._failed()

    def leave_calls(self) -> None:
        """Write torch's record of the newest collective calls (JSON) to ``.calls``, whole or not at all.

        Only the recorder that host-side backends (gloo) write into: asking NCCL's own takes locks of CUDA while the
        interpreter waits, and its watchdog writes it down by itself.
        """
        c10d = sys.modules.get("torch._C._distributed_c10d")
        dump = getattr(c10d, "_dump_fr_trace_json", None)
        if dump is None:  # torch before 2.10
            return
        text = dump()
        text = text.encode() if isinstance(text, str) else bytes(text)
        if b'"entries"' not in text or len(text) > _MAX_CALLS_BYTES:
            return
        partial = self.path + ".calls.tmp"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(text)
        os.rename(partial, self.path + ".calls")

    def forked(self) -> None:
        """In a forked child: a child of a training process is none itself."""
        if self.live:
            if self.fault_file is not None:
                faulthandler.disable()
            self.live, self.off, self.owner = False, True, -1
            self.evaluating = None


def send_datagram(folder: str, line: bytes) -> None:
    """Send `line` to the agent's socket in `folder` without ever waiting; OSError if that cannot be."""
    import socket

    # A socket's address holds 107 bytes at most; through the open folder any path is short.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(line, f"/proc/self/fd/{descriptor}/agent.sock")
    finally:
        os.close(descriptor)


class CallPeriod:
    """Finds the period of the sequence of collective calls and says which calls end a step.

    A call's symbol is its operation and number of elements, with a bit for a long gap before it where that
    helps (equal all-reduces in bursts). The period is the smallest lag at which at least 95% of the symbols of
    the whole window repeat (Falcon, section 4.2, takes the first lag with an autocorrelation of 0.95), seen at
    least three times. A step ends with the call before the longest gap.
    """

    def __init__(self) -> None:
        self.log: list[tuple[Any, int, _Mark]] = []
        self.next_try = 24
        self.pattern: list[Any] = []
        self.at = 0  # place in the pattern of the next call
        self.long_ns = 0
        self.last_ns = 0

    def forget(self) -> None:
        """Drop everything; a stronger source has been found."""
        self.__init__()  # type: ignore[misc]

    def add(self, symbol: Any, began: int, end: _Mark, patience: int) -> list[_Mark]:
        """Take one call in; the ends of steps that are known by it, oldest first."""
        gap, self.last_ns = began - self.last_ns, end[0]
        if self.pattern:
            return self._follow(symbol, gap, end)
        self.log.append((symbol, gap, end))
        if len(self.log) < max(self.next_try, patience):
            return []
        self.next_try = len(self.log) * 2
        found = self._search()
        if not found:
            del self.log[: max(0, len(self.log) - 1024)]
            self.next_try = min(self.next_try, 2048)
            return []
        self.log.clear()
        return found

    def _search(self) -> list[_Mark]:
        symbols = [entry[0] for entry in self.log]
        gaps = [entry[1] for entry in self.log]
        # The third longest gap is that of a step even if two were checkpoints or the like.
        long_ns = sorted(gaps[1:])[-3] * 3 // 10
        # The gap before the very first call means nothing, so that one is left out.
        period = _smallest_period([(symbols[place], gaps[place] >= long_ns) for place in range(1, len(symbols))])
        if period:
            self.long_ns = long_ns
        elif len(symbols) >= _CALLS_WITHOUT_GAPS:
            period = _smallest_period(symbols[1:])
        if not period:
            return []
        means = [sum(gaps[1 + place :: period]) / len(gaps[1 + place :: period]) for place in range(period)]
        first = (1 + max(range(period), key=means.__getitem__)) % period  # the call after the longest gap opens a step
        opening = first + (len(symbols) - period - first) // period * period
        self.pattern = symbols[opening : opening + period]
        self.at = (len(symbols) - first) % period
        return [self.log[place][2] for place in range(period - 1, len(symbols)) if (place + 1 - first) % period == 0]

    def _follow(self, symbol: Any, gap: int, end: _Mark) -> list[_Mark]:
        if self.long_ns and gap >= self.long_ns and self.at and symbol == self.pattern[0]:
            self.at = 0  # a burst was cut short or had an extra call
        if symbol != self.pattern[self.at]:
            if symbol not in self.pattern:
                return []  # a call outside the training loop
            self.at = self.pattern.index(symbol)
        self.at = (self.at + 1) % len(self.pattern)
        return [end] if self.at == 0 else []


def _smallest_period(symbols: Sequence[Any]) -> int:
    """Smallest lag at which 95% of `symbols` repeat, 0 if there is none that fits three times.

    Examples
    --------
    >>> _smallest_period("abcabcabcabc"), _smallest_period("abcdefghijkl")
    (3, 0)
    """
    size = len(symbols)
    for lag in range(1, size // 3 + 1):
        misses, allowed = 0, (size - lag) // 20
        for place in range(size - 1, lag - 1, -1):
            if symbols[place] != symbols[place - lag]:
                misses += 1
                if misses > allowed:
                    break
        else:
            return lag
    return 0


class _NoHandle:
    """Stands for the handle of a prehook where none could be set."""

    def remove(self) -> None:
        """Nothing to remove."""


_NO_HANDLE = _NoHandle()
_HAND_REPEATS = 3
_LONE_REPEATS = 8
_OPTIMIZER_PATIENCE = 1024  # more than the micro-batches of any step, where an optimizer has been made
_CALLS_TO_BELIEVE = 512
_CALLS_WITHOUT_GAPS = 48
_SETTLING_STEPS = 64
_SEND, _RECEIVE = 1, 2
_clock = time.monotonic_ns
_thread = threading.get_ident
_MAX_CALLS_BYTES = 64_000_000  # 2,000 calls, torch's default, have about 1 MB
_pack_step = _STEP_WORDS.pack_into
_STEP_BYTES = _STEP_WORDS.size


def _integer(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if value.isascii() and value.isdigit() else None


def _process_start_ns(otherwise: int) -> int:
    """Wall time of this process's start by the kernel's reckoning, as everybody else names it, whole 10 ms."""
    try:
        with open("/proc/stat", "rb") as file:
            boot_s = next(int(line.split()[1]) for line in file if line.startswith(b"btime "))
        with open("/proc/self/stat", "rb") as file:
            text = file.read()
        ticks = int(text[text.rfind(b")") + 2 :].split()[19])
        return boot_s * 1_000_000_000 + ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    except Exception:
        return otherwise


def _who_am_i() -> tuple[int, int, bool]:
    """(rank, world size, known for sure)."""
    distributed = sys.modules.get("torch.distributed")
    with contextlib.suppress(Exception):
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return distributed.get_rank(), distributed.get_world_size(), True
    # SLURM_PROCID is that of the launcher, not of the rank, under torchrun and the like: hence last.
    pairs = (
        ("RANK", "WORLD_SIZE"),
        ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
        ("PMI_RANK", "PMI_SIZE"),
        ("SLURM_PROCID", "SLURM_NTASKS"),
    )
    for name, size in pairs:
        rank = _integer(name)
        if rank is not None and rank < _MAX_RANK:
            return rank, _integer(size) or 1, name == "RANK"
    return 0, 1, False


def _numel(args: tuple[Any, ...]) -> int:
    """Elements of the first tensor among a call's arguments; 0 where there is none."""
    first: Any = args[0] if args else None
    while isinstance(first, (list, tuple)) and first:
        first = first[0]
    try:
        return int(first.numel())
    except Exception:
        return 0


def _user_frame(trace: types.TracebackType | None) -> str:
    """The innermost frame of the person's own code, as ``file.py:123 in function``."""
    library = os.path.dirname(os.__file__)
    frame = last = ""
    while trace is not None:
        code = trace.tb_frame.f_code
        name = code.co_filename
        last = f"{os.path.basename(name)}:{trace.tb_lineno} in {code.co_name}"
        foreign = "site-packages" in name or "dist-packages" in name or name.startswith(("<", library))
        if not foreign and "/torch/" not in name:
            frame = last
        trace = trace.tb_next
    return frame or last


# ---------------------------------------------------------------- the watches
def _module(name: str) -> Any:
    return sys.modules.get(name)


def _watch_wait(hook: Hook) -> bool:
    c10d = _module("torch._C._distributed_c10d")
    if c10d is None:
        return False
    inner = c10d.Work.wait

    @functools.wraps(inner)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = hook.enter()
        if not began:
            return inner(self, *args, **kwargs)
        try:
            return inner(self, *args, **kwargs)
        finally:
            hook.leave(began)

    c10d.Work.wait = hide(wait)
    return True


_OPERATIONS = (
    "allreduce", "allreduce_coalesced", "broadcast", "reduce", "allgather", "_allgather_base", "allgather_coalesced",
    "allgather_into_tensor_coalesced", "all_gather_single", "all_gather_single_coalesced", "gather", "gather_single",
    "gather_into_tensor", "scatter", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced", "alltoall", "alltoall_base",
    "all_to_all_single", "barrier", "monitored_barrier",
)  # fmt: skip


def _watch_calls(hook: Hook) -> bool:
    c10d = _module("torch._C._distributed_c10d")
    if c10d is None:
        return False
    kinds = {"send": _SEND, "recv": _RECEIVE, "recv_anysource": _RECEIVE}
    kinds.update({name: code for code, name in enumerate(_OPERATIONS, start=8)})
    for name, code in kinds.items():
        inner = getattr(c10d.ProcessGroup, name, None)
        if inner is not None:
            setattr(c10d.ProcessGroup, name, _call_watch(hook, inner, code))
    return True


def _call_watch(hook: Hook, inner: Any, code: int) -> Any:
    @functools.wraps(inner)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        began = hook.enter()
        if not began:
            return inner(self, *args, **kwargs)
        hook.words[_CALLS] = hook.calls = hook.calls + 1  # begun: of a rank that is stuck in it, too
        try:
            return inner(self, *args, **kwargs)
        finally:
            hook.leave(began)
            hook.called(code, args, began)

    return hide(call)


def _watch_broadcast(hook: Hook) -> bool:
    """DDP sends its buffers round at every forward by one C++ call that waits inside."""
    distributed = _module("torch.distributed")
    if distributed is None or not hasattr(distributed, "_broadcast_coalesced"):
        return False
    distributed._broadcast_coalesced = _call_watch(hook, distributed._broadcast_coalesced, 7)
    return True


def _watch_wait_tensor(hook: Hook) -> bool:
    functional = _module("torch.distributed._functional_collectives")
    if functional is None or not hasattr(functional, "wait_tensor"):
        return False
    is_compiling = _module("torch").compiler.is_compiling

    def watch(inner: Any) -> Any:
        # Not hidden from torch.compile: it must trace through this one, or a compiled collective would break its graph.
        @functools.wraps(inner)
        def wait_tensor(*args: Any, **kwargs: Any) -> Any:
            if is_compiling():
                return inner(*args, **kwargs)
            began = hook.enter()
            try:
                return inner(*args, **kwargs)
            finally:
                if began:
                    hook.leave(began)

        return wait_tensor

    for name in ("wait_tensor", "wait_tensors"):
        if hasattr(functional, name):
            setattr(functional, name, watch(getattr(functional, name)))
    return True


def _watch_backward(hook: Hook) -> bool:
    autograd = _module("torch.autograd")
    if autograd is None:
        return False
    hook.engine = autograd.Variable._execution_engine
    inner = autograd.backward

    @functools.wraps(inner)
    def backward(*args: Any, **kwargs: Any) -> Any:
        handle = hook.begin_backward(args[0] if args else kwargs.get("tensors"))
        if handle is None:
            return inner(*args, **kwargs)
        try:
            return inner(*args, **kwargs)
        finally:
            hook.end_backward(handle)

    autograd.backward = hide(backward)
    return True


def _watch_optimizer(hook: Hook) -> bool:
    module = _module("torch.optim.optimizer")
    if module is None or not hasattr(module, "register_optimizer_step_post_hook"):
        return False
    module.register_optimizer_step_post_hook(hook.optimizer_stepped)
    inner = module.Optimizer.__init__

    @functools.wraps(inner)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        hook.optimizers += 1
        inner(self, *args, **kwargs)

    module.Optimizer.__init__ = hide(initialise)
    return True


def _watch_scaler(hook: Hook) -> bool:
    """A gradient scaler passes over the optimizer's step when gradients overflow: an iteration all the same."""
    module = _module("torch.amp.grad_scaler")
    if module is None:
        return False
    inner = module.GradScaler.update

    @functools.wraps(inner)
    def update(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return inner(self, *args, **kwargs)
        finally:
            hook.optimizer_stepped()

    module.GradScaler.update = hide(update)
    return True


def _watch_replicas(hook: Hook) -> bool:
    module = _module("torch.nn.parallel.distributed")
    if module is None:
        return False
    inner = module.DistributedDataParallel.__init__

    @functools.wraps(inner)
    def initialise(self: Any, *args: Any, **kwargs: Any) -> None:
        inner(self, *args, **kwargs)
        hook.replicas.add(self)

    module.DistributedDataParallel.__init__ = hide(initialise)
    return True


def _pausing(hook: Hook, inner: Any, phase: int) -> Any:
    @functools.wraps(inner)
    def paused(*args: Any, **kwargs: Any) -> Any:
        token = hook.begin_pause(phase)
        try:
            return inner(*args, **kwargs)
        finally:
            if token is not None:
                hook.end_pause(token, phase)

    return hide(paused)


def _watch_save(hook: Hook) -> bool:
    torch = _module("torch")
    if torch is None or not hasattr(torch, "save"):
        return False
    torch.save = torch.serialization.save = _pausing(hook, torch.save, _CHECKPOINT)
    return True


def _watch_distributed_save(hook: Hook) -> bool:
    package = _module("torch.distributed.checkpoint")
    saver = _module("torch.distributed.checkpoint.state_dict_saver")
    if package is None or saver is None or not hasattr(package, "save"):
        return False
    package.save = saver.save = _pausing(hook, saver.save, _CHECKPOINT)
    return True


def _watch_data(hook: Hook) -> bool:
    module = _module("torch.utils.data.dataloader")
    if module is None:
        return False
    kind = module._BaseDataLoaderIter
    kind.__next__ = _pausing(hook, kind.__next__, _DATA)
    return True


def _watch_mode(hook: Hook) -> bool:
    module = _module("torch.nn.modules.module")
    if module is None:
        return False
    inner = module.Module.train
    is_compiling = _module("torch").compiler.is_compiling
    busy = [False]

    @functools.wraps(inner)
    def train(self: Any, mode: bool = True) -> Any:
        # Not hidden from torch.compile, as wait_tensor. A module trains its children by the same method: only the
        # outermost call means anything.
        if is_compiling() or busy[0] or not hook.live or _thread() != hook.owner:
            return inner(self, mode)
        busy[0] = True
        try:
            hook.mode_changed(self, bool(mode))
        except Exception:
            hook._failed()
        try:
            return inner(self, mode)
        finally:
            busy[0] = False

    module.Module.train = train
    return True


_PATCHES: tuple[Callable[[Hook], bool], ...] = (
    _watch_wait, _watch_calls, _watch_broadcast, _watch_wait_tensor, _watch_backward, _watch_optimizer, _watch_scaler,
    _watch_replicas, _watch_save, _watch_distributed_save, _watch_data, _watch_mode,
)  # fmt: skip


def hide(function: Any) -> Any:
    """`function` with its code under a file name that torch.compile leaves alone."""

    def renamed(code: types.CodeType) -> types.CodeType:
        inner = tuple(renamed(value) if isinstance(value, types.CodeType) else value for value in code.co_consts)
        return code.replace(co_filename="<frozen importlib trainwarden>", co_consts=inner)

    function.__code__ = renamed(function.__code__)
    return function


# ---------------------------------------------------------------- what people and torch call
_PLACE = "_trainwarden_hook"  # in `sys`: one hook per process, whatever file it was loaded from


def _hook(create: bool = True) -> Any:
    """The hook of this process, made if the environment asks for one; None if not."""
    found = vars(sys).get(_PLACE)
    if found is None and create:
        folder = os.environ.get("TRAINWARDEN_HOOK_DIR", "")
        if folder and os.path.isdir(folder):
            found = vars(sys).setdefault(_PLACE, Hook(os.path.abspath(folder)))
            os.register_at_fork(after_in_child=found.forked)
    return found


def autoload() -> None:
    """Called by torch at the end of ``import torch``: put the watches in place, write nothing yet."""
    try:
        hook = _hook()
        if hook is not None:
            hook.install()
    except Exception:
        pass  # torch would turn it into a failed import


def iteration(step: int | None = None) -> None:
    """Mark the end of an iteration; from the first mark on nothing else ends one.

    Parameters
    ----------
    step : int, optional
        The number of the iteration that ended; default one more than the one before.
    """
    try:
        hook = _hook()
        if hook is not None:
            hook.marked(step if step is None or 0 <= step < 2**62 else None)
    except Exception:
        pass


def set_step(step: int) -> None:
    """Say that the next iteration is the job's own number `step`, for a job that resumes from a checkpoint."""
    try:
        hook = _hook()
        if hook is not None and step >= 0:
            hook.number(int(step))
    except Exception:
        pass


@contextlib.contextmanager
def phase(name: str) -> Iterator[None]:
    """Name a pause: ``checkpoint``, ``data`` or ``evaluation``; other names mean nothing."""
    token, code = None, _NONE
    try:
        hook = _hook()
        if hook is not None and name in PHASES[_CHECKPOINT:_EXIT] and (hook.live or hook.activate()):
            code = PHASES.index(name)
            token = hook.begin_pause(code)
    except Exception:
        pass
    try:
        yield
    finally:
        try:
            if token is not None:
                hook.end_pause(token, code)
        except Exception:
            pass


def micro_batches(count: int) -> None:
    """Declare how many micro-batches this rank runs per iteration from now on."""
    try:
        hook = _hook()
        if hook is not None and count >= 1:
            hook.micro = int(count)
            if hook.live:
                hook.words[_MICRO] = hook.micro
    except Exception:
        pass


class MicroBatchPlan:
    """The launcher's wish of how many micro-batches each rank runs, read from ``plan.json`` of the run folder.

    All ranks must change at the same iteration. Let the training loop agree on the newest plan that everybody
    can read, then adopt that one; a rank that has read newer ones keeps the older::

        number = torch.tensor([plan.latest()])
        torch.distributed.all_reduce(number, op=torch.distributed.ReduceOp.MIN)
        if int(number) > adopted:
            adopted = int(number)
            shares = plan.adopt(adopted)

    Parameters
    ----------
    rank, world_size : int
        This process and how many there are.
    total : int
        Micro-batches of one iteration over all ranks; a plan that does not sum to it is passed over.

    Examples
    --------
    >>> MicroBatchPlan(0, 4, 10).adopt(0)
    (3, 3, 2, 2)
    """

    def __init__(self, rank: int, world_size: int, total: int) -> None:
        self.rank = rank
        share, rest = divmod(total, world_size)
        self.total = total
        self.plans: dict[int, tuple[int, ...]] = {0: tuple(share + (place < rest) for place in range(world_size))}
        self.in_force = self.plans[0]
        folder = os.environ.get("TRAINWARDEN_RUN_DIR") or os.path.dirname(os.environ.get("TRAINWARDEN_HOOK_DIR", ""))
        self.path = os.path.join(folder, "plan.json") if folder else ""
        self.seen: tuple[int, int, int] | None = None

    def latest(self) -> int:
        """Number of the newest plan that could be read; 0, the even split, if there is none. One stat per call."""
        try:
            if self.path:
                state = os.stat(self.path)
                seen = (state.st_ino, state.st_mtime_ns, state.st_size)
                if seen != self.seen:
                    self._read()
                    self.seen = seen
        except Exception:
            pass
        return max(self.plans)

    def adopt(self, number: int) -> tuple[int, ...]:
        """Micro-batches of every rank under plan `number`, which is in force from now on.

        A number that was never read leaves the list that is in force as it is.
        """
        try:
            self.in_force = self.plans.get(number, self.in_force)
            hook = _hook()
            if hook is not None and number in self.plans and (hook.live or hook.activate()):
                micro_batches(self.in_force[self.rank])
                hook.words[_PLAN], hook.words[_PLAN_STEP] = number, hook.step
                text = ",".join(map(str, self.in_force))
                hook.note({"type": "plan", "plan": number, "micro_batches": text, "step": hook.step})
        except Exception:
            pass
        return self.in_force

    def _read(self) -> None:
        with open(self.path, "rb") as file:
            found = json.loads(file.read(_MAX_PLAN_BYTES))
        for plan in [*found.get("history", ()), found]:
            if not isinstance(plan, dict):
                continue
            number, shares = plan.get("number"), plan.get("micro_batches")
            if type(number) is int and number > 0 and number not in self.plans and self._valid(shares):
                self.plans[number] = tuple(shares or ())

    def _valid(self, shares: Any) -> bool:
        return bool(
            isinstance(shares, list)
            and len(shares) == len(self.plans[0])
            and all(type(share) is int and share >= 1 for share in shares)
            and sum(shares) == self.total
        )


for _kind in (Hook, CallPeriod, _NoHandle):
    for _value in list(vars(_kind).values()):
        if isinstance(_value, types.FunctionType):
            hide(_value)
for _value in (_numel, _smallest_period, _who_am_i, _user_frame, iteration, set_step, micro_batches, _hook):
    hide(_value)
