"""A slow link in the group that exchanges much: found, planned around and moved away from, on real links.

Four nodes, two pipeline stages of two ranks on gloo. Real are the network (tbf), the ranks, launchers, rendezvous,
bus, detection and engine; what an agent would tell of NCCL's calls is told by the test, off what the ranks write down.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NoReturn

import pytest

from tests.places import ROOT
from tests.servers.kafka import ServerMissing
from tests.system.nodes_job import PORT, Job
from tests.system.runs import WARDEN
from tests.testbed.nodes import Testbed
from trainwarden.actions.planners.move import AGREES
from trainwarden.bus.address import connect
from trainwarden.records import (
    ActionRecord,
    CollectivesRecord,
    EventRecord,
    HeartbeatRecord,
    IncidentRecord,
    IterationRecord,
    Record,
)
from trainwarden.topics import ACTIONS, INCIDENTS, topic_of

pytestmark = [pytest.mark.system, pytest.mark.thorough, pytest.mark.timeout(420)]

RATE_MBIT, PORT_MBIT, SLOW_MBIT = 400.0, 100.0, 40.0
HEALTHY_STEPS, STEPS = 40, 4000
OVERHEAD_S: Final = 5.0
REMEDIES: Final = (
    f'slow_link = [{{ action = "validate" }}, {{ action = "move_topology", overhead_s = {OVERHEAD_S} }}]\n'
)


@pytest.fixture
def testbed(tmp_path: Path, require_servers: Callable[[str], NoReturn]) -> Iterator[Testbed]:
    pytest.importorskip("torch")
    try:
        with Testbed(4, tmp_path, rate_mbit=RATE_MBIT) as testbed:
            yield testbed
    except ServerMissing as missing:
        require_servers(str(missing))


class Told:
    """Tells the bus of each step that the ranks have written down, as agents would."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.bus = folder, connect(f"embedded:{folder / 'bus.db'}")
        self.read: dict[Path, int] = {}
        self.steps: dict[int, list[tuple[int, float]]] = {}
        fields: dict[str, Any] = {
            "source": "settings", "world_size": 4, "started_s": time.time(), "tp": 1, "cp": 1, "dp": 2, "pp": 2,
        }  # fmt: skip
        self.put(
            EventRecord(id="s", job="j", node="n0", time_s=time.time(), kind="job_start", fields={"world_size": 4}),
            EventRecord(id="l", job="j", node="n0", time_s=time.time(), kind="parallel_layout", rank=0, fields=fields),
        )

    def put(self, *records: Record) -> None:
        for record in records:
            self.bus.publish(topic_of(record), "j", record)
        self.bus.flush()

    def on(self) -> None:
        for path in sorted(self.folder.glob("log.*")):
            with path.open() as file:
                file.seek(self.read.get(path, 0))
                while (line := file.readline()).endswith("\n"):
                    self.read[path] = file.tell()
                    self.tell(json.loads(line))

    def tell(self, step: dict[str, Any]) -> None:
        if step["rank"] == 0:
            self.steps.setdefault(step["attempt"], []).append((step["step"], step["took_s"]))
        who: dict[str, Any] = {"job": "j", "node": step["node"], "rank": step["rank"]}
        life = str(step["attempt"])
        self.put(
            IterationRecord(
                **who, incarnation=life, steps=(step["step"],), end_s=(step["end_s"],), duration_s=(step["took_s"],),
                basis="device_step", accelerator="cuda",
            ),
            HeartbeatRecord(
                job="j", node=step["node"], time_s=step["end_s"], ranks=(step["rank"],), pids=(1,),
                incarnations=(life,), steps=(step["step"],), step_end_s=(step["end_s"],), phases=("compute",),
                phase_since_s=(step["end_s"],), calls=(9 * step["step"],), states=("S",), cpu_s=(0.0,),
                monotonic_s=step["monotonic_s"], boot="b",
            ),
            calls_of(step, who, life),
        )  # fmt: skip

    def median_s(self, attempt: int, first: int, last: int | None = None) -> float:
        return statistics.median(took_s for _, took_s in self.steps[attempt][first:last])

    def actions(self) -> list[ActionRecord]:
        return [message.record for message in self.bus.read(ACTIONS) if isinstance(message.record, ActionRecord)]

    def incidents(self) -> list[str]:
        found = [message.record for message in self.bus.read(INCIDENTS)]
        return [f"{one.kind} {one.state}: {one.reason}" for one in found if isinstance(one, IncidentRecord)]


def calls_of(step: dict[str, Any], who: dict[str, Any], life: str) -> CollectivesRecord:
    calls = step["calls"]
    comms = list(dict.fromkeys(one["comm"] for one in calls))
    places = [next(one["place"] for one in calls if one["comm"] == comm) for comm in comms]
    counts = tuple(sum(one["comm"] == comm for one in calls) * (1 + step["step"]) for comm in comms)
    return CollectivesRecord(
        **who, incarnation=life, time_s=step["end_s"], monotonic_s=step["monotonic_s"], boot="b", comms=tuple(comms),
        groups=tuple(comms), sizes=(2,) * len(comms), places=tuple(places), node_counts=(2,) * len(comms),
        enqueued=counts, started=counts, finished=counts, of=tuple(comms.index(one["comm"]) for one in calls),
        functions=tuple(one["function"] for one in calls), seqs=tuple(one["seq"] for one in calls),
        steps=(step["step"],) * len(calls), call_bytes=tuple(one["bytes"] for one in calls),
        device_s=tuple(one["device_s"] for one in calls), enqueued_s=tuple(one["enqueued_s"] for one in calls),
        peers=tuple(None if one["function"] == "all_reduce" else 1 - one["place"] for one in calls),
    )  # fmt: skip


def test_the_nodes_are_numbered_anew_and_the_iteration_takes_as_long_as_predicted(
    testbed: Testbed, tmp_path: Path
) -> None:
    """Of six links between four nodes two are of no group, so one slow link can be left; a slow port cannot."""
    config = tmp_path / "site.toml"
    (tmp_path / "remedies.toml").write_text(REMEDIES)
    home = testbed.nodes[-1]
    config.write_text(
        f'job = "j"\nbus = "embedded:{tmp_path / "bus.db"}"\n[engine]\nmode = "auto"\nlauncher = "torchrun"\n'
        f'remedies = "{tmp_path / "remedies.toml"}"\n[engine.launcher_settings]\nendpoint = "{home.address}:{PORT}"\n'
        f'token_file = "{tmp_path / "token"}"\n'
    )
    told = Told(tmp_path)
    job = Job(testbed, tmp_path, 4, "--nnodes", "4", steps=STEPS, script="grid.py")
    beside = list[subprocess.Popen[Any]]()
    for name in ("detector", "engine"):
        environ = {**os.environ, "TRAINWARDEN_NODE": name, "TRAINWARDEN_RUN_DIR": str(tmp_path / name)}
        with (tmp_path / f"{name}.out").open("ab") as out:
            command = [*WARDEN, name, "--config", str(config)]
            beside.append(home.start(*command, cwd=ROOT, env=environ, stdout=out, stderr=out))

    def until(what: str, true: Callable[[], object], within_s: float) -> None:
        until_s = time.monotonic() + within_s
        while not true():
            told.on()
            said = [(one.id, one.outcome, one.why) for one in told.actions()]
            assert time.monotonic() < until_s, f"not seen: {what}\n{told.incidents()}\n{said}\n{job.said()}"
            time.sleep(0.2)

    until("healthy steps", lambda: len(told.steps.get(0, ())) >= HEALTHY_STEPS, 120.0)
    healthy_s = told.median_s(0, 5)
    testbed.nodes[2].slow_link(testbed.nodes[3], SLOW_MBIT)
    testbed.nodes[2].slow(PORT_MBIT)
    slow_from = len(told.steps[0])
    until("a move", lambda: any(a.kind == "move_topology" and a.outcome == "done" for a in told.actions()), 200.0)
    slow_s = told.median_s(0, slow_from + 2)
    until("steps after it", lambda: len(told.steps.get(1, ())) >= 25, 90.0)
    after_s = told.median_s(1, 3)
    plan = next(a.plan for a in told.actions() if a.kind == "move_topology" and a.outcome == "done")
    predicted_s, order = plan["predicted_iteration_s"], plan["node_order"]
    print(
        f"healthy {healthy_s:.3f} s, slow {slow_s:.3f} s (told: {plan['iteration_s']:.3f}), predicted {predicted_s:.3f}"
        f" s, measured {after_s:.3f} s; order {' '.join(order)}; incidents: {told.incidents()[0]}"
    )
    assert slow_s > 1.5 * healthy_s
    assert {"n2", "n3"} not in ({*order[:2]}, {*order[2:]})
    assert predicted_s > 1.1 * healthy_s, "the port is as slow in any order"
    assert predicted_s / AGREES < after_s < predicted_s * AGREES
    assert [one.id for one in told.actions() if one.kind == "move_topology" and one.outcome == "started"] == [
        one.id for one in told.actions() if one.kind == "move_topology" and one.outcome == "done"
    ]
