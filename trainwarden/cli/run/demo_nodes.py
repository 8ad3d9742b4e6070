"""`trainwarden demo --fault node-lost`: several machines within this one, one of them lost, a spare in its place."""

from __future__ import annotations

import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Final

from trainwarden.cli.run.demo_job import example_script
from trainwarden.cli.run.job_run import JobRun, exit_code_of
from trainwarden.cli.run.machines import Machine, Machines
from trainwarden.cli.shared.output import Voice

PORT: Final = 29_402
STEPS_AFTER: Final = 20
LOOK_S: Final = 0.05
EVERY: Final = 5  # steps between two checkpoints
EVERY_IN_MEMORY: Final = 10  # they are in two nodes' memory a second or two later, and a step takes 0.3 s
_STEP: Final = re.compile(r"^step (\d+) loss ", re.MULTILINE)
_FROM: Final = re.compile(r"trainwarden: checkpoints: (.*)$", re.MULTILINE)
_RESTORED: Final = re.compile(r"step (\d+) is restored from (.*)")
_START: Final = re.compile(r"attempt (\d+): ranks start here, on node \d+ of \d+")
_WHY: Final = re.compile(r"(attempt \d+: ranks start here, on node \d+ of \d+ \(.*\))$", re.MULTILINE)


class NodesDemo:
    """A job of one rank on each of all machines but one, which is the spare; one that trains is lost at `at_step`."""

    def __init__(
        self, run: JobRun, voice: Voice, *, nodes: int, seed: int, at_step: int, in_memory: bool = False,
        within_s: float,
    ) -> None:  # fmt: skip
        self._within_s = within_s
        self._in_memory, self._restored = in_memory, _Restored()
        self._run, self._voice, self._nodes, self._seed, self._at_step = run, voice, nodes, seed, at_step
        self._folder = run.run_dir / "nodes"
        self._folder.mkdir()
        self._read: dict[str, int] = {}  # bytes of each machine's output that have been looked at
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._step = -1
        self._attempts: dict[int, set[str]] = {}
        self._lost: tuple[str, int, float] | None = None  # who, after which step, when (monotonic)
        self._attempts_before = 0
        self._first_step_s: float | None = None

    def carry_out(self) -> dict[str, Any]:
        """Run it to its end; the demo's JSON object."""
        deadline_s = time.monotonic() + self._within_s
        with Machines(self._nodes) as machines:
            for machine in machines.all:
                self._start(machine, machines.all[0].address)
            while time.monotonic() < deadline_s and any(one.poll() is None for one in self._processes.values()):
                time.sleep(LOOK_S)
                self._look()
                if self._lost is None and self._step >= self._at_step:
                    self._lose(machines)
            self._look()
            lost = None if self._lost is None else self._lost[0]
            codes = {name: one.poll() for name, one in self._processes.items()}
        codes.pop(lost or "", None)
        return self._result({name: None if code is None else exit_code_of(code) for name, code in codes.items()})

    def _start(self, machine: Machine, home: str) -> None:
        token = self._folder / "token"
        if not token.exists():
            token.touch(mode=0o600)
            token.write_text(secrets.token_hex(16))
        checkpoints = self._folder / "checkpoints"
        launch = [
            sys.executable, "-P", "-m", "trainwarden.cli.main", "launch", "--job", self._run.settings.job,
            "--nnodes", str(self._nodes - 1), "--spares", "1", "--nproc", "1", "--rdzv", f"{home}:{PORT}",
            "--token-file", str(token), "--checkpoints", str(checkpoints),
        ]  # fmt: skip
        if self._in_memory:  # the second machine has rank 0, which alone writes checkpoints, and is lost
            place = (1, 0, *range(2, self._nodes))[machine.number]
            launch += ["--node-rank", str(place)]
        every = EVERY_IN_MEMORY if self._in_memory else EVERY
        script = [
            sys.executable, str(example_script()), "--steps", str(self._at_step + STEPS_AFTER),
            "--micro-batches", str(6 * (self._nodes - 1)), "--seed", str(self._seed), "--checkpoint-every", str(every),
            *(("--checkpoint-dir", "{checkpoints}") if self._in_memory else ()),
        ]  # fmt: skip
        named = {"TRAINWARDEN_NODE": machine.name, "TRAINWARDEN_RUN_DIR": str(self._folder / machine.name)}
        process = machine.start([*launch, "--", *script], {**os.environ, **named}, self._output(machine.name))
        self._processes[machine.name] = process

    def _output(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    def _look(self) -> None:
        """Read what the launchers and rank 0 have written since the last look."""
        for name in self._processes:
            with self._output(name).open("rb") as file:
                file.seek(self._read.get(name, 0))
                whole, newline, _ = file.read().rpartition(b"\n")
            self._read[name] = self._read.get(name, 0) + len(whole) + len(newline)
            text = whole.decode("utf-8", "replace")
            for found in _WHY.finditer(text):
                self._voice.say(f"[{name}] {found[1]}")
            for found in _FROM.finditer(text):
                self._voice.say(f"[{name}] checkpoints: {found[1]}")
                self._restored.note(name, found[1])
            for found in _START.finditer(text):
                self._attempts.setdefault(int(found[1]), set()).add(name)
            for found in _STEP.finditer(text):
                self._stepped(int(found[1]))

    def _stepped(self, step: int) -> None:
        self._step = max(self._step, step)
        if self._lost is not None and self._first_step_s is None and len(self._attempts) > self._attempts_before:
            self._first_step_s = time.monotonic() - self._lost[2]

    def _lose(self, machines: Machines) -> None:
        """The first machine has the rendezvous, so another one that trains goes."""
        training = self._attempts[max(self._attempts)]
        order = machines.all[1:] if self._in_memory else machines.all[::-1]
        machine = next(one for one in order if one.name in training)
        self._attempts_before = len(self._attempts)
        self._lost = machine.name, self._step, time.monotonic()
        machine.lose()
        self._voice.say(f"[fault] {machine.name} is lost after step {self._step}")

    def _result(self, codes: dict[str, int | None]) -> dict[str, Any]:
        why_not = self._why_not(codes)
        attempts = [{"attempt": number, "nodes": sorted(names)} for number, names in sorted(self._attempts.items())]
        lost = None if self._lost is None else {"kind": "node-lost", "node": self._lost[0], "step": self._lost[1]}
        summary = f"{self._nodes - 1} nodes and a spare: {self._told()}"
        return {
            "job": self._run.settings.job, "ranks": self._nodes - 1, "seed": self._seed, "steps": self._step + 1,
            "fault": lost, "attempts": attempts, "exit_codes": codes, "ok": why_not is None, "why_not": why_not,
            **({"restored": self._restored.facts(lost)} if self._in_memory else {}),
            "first_step_after_fault_s": None if self._first_step_s is None else round(self._first_step_s, 3),
            "summary": summary if why_not is None else f"{summary}; not as it should be: {why_not}",
        }  # fmt: skip

    def _told(self) -> str:
        """What happened, in one sentence."""
        if self._lost is None:
            return "nobody was lost"
        told = self._restored.sentence(self._lost[1]) if self._in_memory else ""
        after = "no new step" if self._first_step_s is None else f"first new step {self._first_step_s:.1f} s later"
        return f"{self._lost[0]} was lost; {after}, on {', '.join(sorted(self._attempts[max(self._attempts)]))}{told}"

    def _why_not(self, codes: dict[str, int | None]) -> str | None:
        """The first thing that did not go as it should; None if everything did."""
        if self._lost is None:
            return f"no node came to step {self._at_step} within {self._within_s:.0f} s"
        if self._first_step_s is None:
            return "the job made no step after its node was lost"
        if self._lost[0] in self._attempts[max(self._attempts)]:
            return f"{self._lost[0]} is thought to train though it is lost"
        if self._in_memory and (why := self._restored.why_not(self._lost[1])) is not None:
            return why
        bad = [f"{name}: {code}" for name, code in codes.items() if code != 0]
        return f"launchers did not end well ({', '.join(bad)})" if bad else None


class _Restored:
    """What the nodes have said of the checkpoint that they went on from, after one of them was lost."""

    def __init__(self) -> None:
        self._step: int | None = None
        self._by: dict[str, str] = {}

    def note(self, node: str, words: str) -> None:
        if (found := _RESTORED.match(words)) is not None:
            self._step, self._by[node] = int(found[1]), found[2]

    @property
    def _newcomers(self) -> dict[str, str]:
        """Who had nothing of it: what it needs came from another node."""
        return {node: words for node, words in self._by.items() if "neighbour" in words}

    def facts(self, lost: dict[str, Any] | None) -> dict[str, Any]:
        """For the demo's JSON object."""
        gone = None if lost is None or self._step is None else lost["step"] + 1 - self._step
        return {"step": self._step, "from": dict(sorted(self._by.items())), "lost_steps": gone}

    def sentence(self, last_step: int) -> str:
        if self._step is None:
            return "; nothing was restored from memory"
        by = "; ".join(f"{node} from {words}" for node, words in sorted(self._by.items()))
        gone = last_step + 1 - self._step
        return f". State: step {self._step}, {by}. Lost: {gone} steps; a checkpoint is made every {EVERY_IN_MEMORY}"

    def why_not(self, last_step: int) -> str | None:
        if self._step is None:
            return "no node has restored a checkpoint from memory"
        if not self._newcomers:
            return "the lost node's checkpoint did not come from its neighbour's memory"
        gone = last_step + 1 - self._step
        return f"{gone} steps were lost, more than one interval" if gone > EVERY_IN_MEMORY else None
