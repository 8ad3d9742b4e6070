"""The hook in real torch jobs that know nothing of it: steps, their split, last words, and no trace elsewhere."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import trainwarden
from tests.torch_forks import Forked, TorchForks
from trainwarden import hook
from trainwarden.cli.setup import hook_file
from trainwarden.clock import SystemClock
from trainwarden.collectors.iterations.collector import IterationsCollector
from trainwarden.protocols import Scope
from trainwarden.records import EventRecord

pytestmark = pytest.mark.system

pytest.importorskip("torch")

SCRIPTS = Path(__file__).parent.parent / "scripts"
INJECT = Path(trainwarden.__file__).with_name("inject")
PATIENCE_S = 120.0


class Job:
    """One training command under the hook, with its run folder; with `forks`, a script whose start is no matter."""

    process: subprocess.Popen[bytes] | Forked

    def __init__(
        self, folder: Path, command: list[str], *, forks: TorchForks | None = None, ranks: int = 0, **environ: str
    ) -> None:
        self.run_dir = folder
        self.hook_dir = folder / "hook"
        self.hook_dir.mkdir(exist_ok=True)
        self._log = folder / "job.log"
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("TRAINWARDEN_")}
        own = {**inherited, "TRAINWARDEN_HOOK_DIR": str(self.hook_dir), "OMP_NUM_THREADS": "1", **environ}
        if forks is not None:
            self.process = forks.start(command, own, folder=folder, log=self._log, ranks=ranks)
            return
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                command, env=own, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.PIPE, start_new_session=True
            )

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-3000:]

    def end(self) -> int:
        """Wait for the command; its exit code."""
        try:
            return self.process.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the job did not end\n{self.tail()}")

    def stop(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGCONT)
            os.killpg(self.process.pid, signal.SIGKILL)
        for path in self.hook_dir.glob("*.hook"):  # torchrun gives its ranks sessions of their own
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(path.stem.rpartition("-")[2]), signal.SIGKILL)
        self.process.wait()
        if isinstance(self.process, subprocess.Popen) and self.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.process.stdin.close()

    def header(self, rank: int) -> hook.Header | None:
        for path in self.hook_dir.glob(f"rank-{rank}-*.hook"):
            return hook.read_header(path)
        return None

    def steps(self, rank: int) -> list[hook.Step]:
        (path,) = self.hook_dir.glob(f"rank-{rank}-*.hook")
        found = hook.read_steps(path)
        assert found is not None
        return found

    def until_step(self, rank: int, step: int) -> hook.Header:
        """Wait until `rank` has come to `step`."""
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline and self.process.poll() is None:
            header = self.header(rank)
            if header is not None and header.step >= step:
                return header
            time.sleep(0.02)
        pytest.fail(f"rank {rank} never came to step {step}\n{self.tail()}")


@pytest.fixture
def jobs(tmp_path: Path) -> Iterator[list[Job]]:
    """Jobs that a test has started; none outlives it."""
    started: list[Job] = []
    yield started
    for job in started:
        job.stop()


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[IterationsCollector]:
    """The agent's side of the run folder."""
    (tmp_path / "hook").mkdir()
    scope = Scope(job="job", node="node", run_dir=str(tmp_path))
    made = IterationsCollector(IterationsCollector.Config(), scope, SystemClock())
    yield made
    made.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def torchrun(ranks: int, script: str, *options: object) -> list[str]:
    return [
        sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks),
        "--master-port", str(free_port()), str(SCRIPTS / script), *map(str, options),
    ]  # fmt: skip


def snippet(folder: Path, code: str) -> list[str]:
    return [sys.executable, *script(folder, code)]


def script(folder: Path, code: str) -> list[str]:
    path = folder / "snippet.py"
    path.write_text(textwrap.dedent(code))
    return [str(path)]


def assert_sums(rows: list[hook.Step]) -> None:
    for row in rows:
        assert row.compute_s + row.wait_s + row.pause_s == pytest.approx(row.duration_s, abs=1e-8)


@pytest.mark.parametrize(
    ("ranks", "name", "options", "source", "roles"),
    [
        (2, "ddp_accumulate.py", ("--evaluate-every", 4, "--save-every", 5), "optimizer", {"collective"}),
        (2, "sgd_by_hand.py", ("--micro-batches", 2), "by_hand", {"collective"}),
        (2, "fsdp.py", (), "optimizer", {"collective"}),
        (2, "fsdp.py", ("--wrapper",), "optimizer", {"collective"}),
        (3, "pipeline.py", (), "optimizer", {"p2p:first", "p2p:middle", "p2p:last"}),
        (2, "engine_backward.py", (), "optimizer", {"collective"}),
    ],
)
def test_every_step_is_found_and_split(
    ranks: int,
    name: str,
    options: tuple[object, ...],
    source: str,
    roles: set[str],
    torch_forks: TorchForks,
    tmp_path: Path,
    jobs: list[Job],
) -> None:
    words = ("--steps", 12, *options)
    if name == "ddp_accumulate.py":
        job = Job(tmp_path, torchrun(ranks, name, *words))
    else:
        job = Job(tmp_path, [str(SCRIPTS / name), *map(str, words)], forks=torch_forks, ranks=ranks)
    jobs.append(job)
    assert job.end() == 0, job.tail()
    # One file per rank: the launcher, which imports torch as well, wrote none.
    assert len(list(job.hook_dir.glob("*.hook"))) == ranks
    headers = [job.header(rank) for rank in range(ranks)]
    assert {header.role for header in headers if header} == roles
    assert {header.exit_code for header in headers if header} == {0}
    assert {header.errors for header in headers if header} == {0}
    for rank in range(ranks):
        rows = job.steps(rank)
        assert [row.step for row in rows] == list(range(12))
        assert rows[-1].source == source
        assert_sums(rows)
        # Twelve emulated steps of 40 ms; more only where the machine was busy.
        assert statistics.median(row.compute_s for row in rows) > 0.030
    if name == "ddp_accumulate.py":
        assert {row.micro_batches for row in job.steps(0)} == {2}
        evaluated = [row for row in job.steps(1) if row.pause_s > 0.05]
        assert [row.step for row in evaluated] == [4, 8]


def test_a_slow_rank_computes_longest_and_waits_least(torch_forks: TorchForks, tmp_path: Path, jobs: list[Job]) -> None:
    words = [str(SCRIPTS / "ddp_accumulate.py"), "--steps", "60", "--work-ms", "80"]
    job = Job(tmp_path, words, forks=torch_forks, ranks=3)
    jobs.append(job)
    slow = 1
    pid = job.until_step(slow, 15).pid
    while job.process.poll() is None:
        header = job.header(slow)
        if header is None or header.step >= 50:
            break
        os.kill(pid, signal.SIGSTOP)
        time.sleep(0.06)
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.08)
    assert job.end() == 0, job.tail()
    rows = {rank: job.steps(rank)[20:45] for rank in range(3)}
    compute = {rank: statistics.median(row.compute_s for row in rows[rank]) for rank in rows}
    waits = {rank: statistics.median(row.wait_s for row in rows[rank]) for rank in rows}
    before = statistics.median(row.compute_s for row in job.steps(slow)[3:14])
    assert max(compute, key=compute.__getitem__) == slow, compute
    assert min(waits, key=waits.__getitem__) == slow, waits
    assert compute[slow] > 1.25 * before
    assert compute[slow] > 1.2 * max(compute[0], compute[2])


def test_of_a_hang_the_culprit_computes_and_the_victims_wait(
    torch_forks: TorchForks, tmp_path: Path, jobs: list[Job]
) -> None:
    words = [str(SCRIPTS / "sgd_by_hand.py"), "--steps", "30", "--hang-at", "8", "--hang-rank", "1"]
    job = Job(tmp_path, words, forks=torch_forks, ranks=2)
    jobs.append(job)
    job.until_step(1, 8)
    time.sleep(1.0)
    culprit, victim = job.header(1), job.header(0)
    assert culprit is not None
    assert victim is not None
    assert (culprit.phase, victim.phase) == ("compute", "wait")
    assert victim.phase_since_s < time.time() - 0.5
    os.kill(victim.pid, signal.SIGKILL)
    assert [row.step for row in job.steps(0)] == list(range(8))  # readable after SIGKILL
    assert job.end() != 0


def test_an_exception_is_heard_while_the_process_still_lives(
    tmp_path: Path, jobs: list[Job], collector: IterationsCollector
) -> None:
    code = """
        import sys, torch
        sys.excepthook = lambda *args: sys.stdin.readline()  # a person's own hook, which takes its time
        weight = torch.ones(3, requires_grad=True)
        (weight * weight).sum().backward()
        def train(): raise ValueError("bad sample")
        train()
    """
    list(collector.collect(time.time()))
    job = Job(tmp_path, snippet(tmp_path, code), RANK="6")
    jobs.append(job)
    deadline = time.monotonic() + PATIENCE_S
    told: list[EventRecord] = []
    while not told and time.monotonic() < deadline:
        found = collector.collect(time.time())
        told = [record for record in found if isinstance(record, EventRecord) and record.kind == "exception"]
        time.sleep(0.02)
    assert told, job.tail()
    assert job.process.poll() is None
    assert (told[0].rank, told[0].message) == (6, "ValueError: bad sample")
    assert str(told[0].fields["frame"]).startswith("snippet.py:6 in train"), told[0].fields
    assert isinstance(job.process, subprocess.Popen)
    assert job.process.stdin is not None
    job.process.stdin.close()
    assert job.end() == 1


def test_a_segmentation_fault_leaves_its_last_words(
    torch_forks: TorchForks, tmp_path: Path, jobs: list[Job], collector: IterationsCollector
) -> None:
    code = """
        import ctypes, torch
        torch.ones(3, requires_grad=True).sum().backward()
        ctypes.string_at(0)
    """
    job = Job(tmp_path, script(tmp_path, code), forks=torch_forks)
    jobs.append(job)
    assert job.end() == -signal.SIGSEGV, job.tail()
    found = [record for record in collector.collect(time.time()) if isinstance(record, EventRecord)]
    (event,) = (record for record in found if record.kind == "fatal_signal")
    assert event.fields["signal"] == "SIGSEGV"


def test_data_loader_workers_and_other_children_leave_no_trace(
    torch_forks: TorchForks, tmp_path: Path, jobs: list[Job]
) -> None:
    code = """
        import os, torch
        from torch.utils.data import DataLoader, TensorDataset
        class Mine(TensorDataset):
            def __getitem__(self, place):
                weight = torch.ones(3, requires_grad=True)
                weight.sum().backward()  # as some augmentations do
                return super().__getitem__(place)
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        def step():
            (weight * weight).sum().backward()
            optimizer.step()
        step()
        for batch in DataLoader(Mine(torch.arange(6)), num_workers=2, batch_size=2):
            step()
        if os.fork() == 0:
            step()
            raise SystemExit(3)
        os.wait()
    """
    job = Job(tmp_path, script(tmp_path, code), forks=torch_forks)
    jobs.append(job)
    assert job.end() == 0, job.tail()
    header = job.header(0)
    assert header is not None
    assert (header.pid, header.recorded, header.exit_code, header.phase) == (job.process.pid, 4, 0, "exit")
    assert sorted(path.suffix for path in job.hook_dir.iterdir()) == [".fault", ".hook"]


@pytest.mark.parametrize("form", ["package", "file"])
def test_injected_by_path_alone_with_the_next_sitecustomize_still_run(
    form: str, tmp_path: Path, jobs: list[Job]
) -> None:
    inject = INJECT
    if form == "file":  # as in an image that has nothing of ours but these two
        inject = Path(shutil.copytree(INJECT, tmp_path / "image" / "inject"))
        (tmp_path / "image" / "trainwarden_hook.py").write_text(hook_file.text())
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import sys\nsys.theirs = __file__\n")
    code = f"""
        import importlib.util, sys
        assert sys.theirs.startswith({str(theirs)!r}), "their sitecustomize was lost"
        assert importlib.util.find_spec("torch") is not None  # asking does not use the watcher up
        import torch
        assert "_trainwarden_injected_hook" in sys.modules
        assert "trainwarden" not in sys.modules
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for _ in range(3):
            weight.sum().backward()
            optimizer.step()
    """
    path = f"{inject}{os.pathsep}{theirs}"
    job = Job(tmp_path, snippet(tmp_path, code), PYTHONPATH=path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    jobs.append(job)
    assert job.end() == 0, job.tail()
    assert [row.step for row in job.steps(0)] == [0, 1, 2]


def test_a_copied_file_alone_watches_a_job_of_two(tmp_path: Path, jobs: list[Job]) -> None:
    """As the hook's own docstring has it, in a Python where nothing of ours is found by torch."""
    (tmp_path / "copied").mkdir()
    (tmp_path / "copied" / "trainwarden_hook.py").write_text(hook_file.text())
    script = tmp_path / "job.py"
    lines = (SCRIPTS / "ddp_accumulate.py").read_text().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if line.startswith("import torch"))
    loaded = "import torch\nimport trainwarden_hook\ntrainwarden_hook.autoload()\n"
    script.write_text("".join([*lines[:place], loaded, *lines[place:]]))
    command = [*torchrun(2, "ddp_accumulate.py")[:-1], str(script), "--steps", "12"]
    path = os.pathsep.join([str(tmp_path / "copied"), str(SCRIPTS)])
    job = Job(tmp_path, command, PYTHONPATH=path, TORCH_DEVICE_BACKEND_AUTOLOAD="0")
    jobs.append(job)
    assert job.end() == 0, job.tail()
    for rank in range(2):
        header = job.header(rank)
        assert header is not None
        assert (header.role, header.exit_code, header.errors) == ("collective", 0, 0)
        rows = job.steps(rank)
        assert [row.step for row in rows] == list(range(12))
        assert_sums(rows)


def test_brought_in_twice_it_is_one_hook(tmp_path: Path, jobs: list[Job]) -> None:
    code = """
        import torch
        weight = torch.ones(3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for _ in range(3):
            weight.sum().backward()
            optimizer.step()
    """
    job = Job(tmp_path, snippet(tmp_path, code), PYTHONPATH=str(INJECT))
    jobs.append(job)
    assert job.end() == 0, job.tail()
    assert len(job.steps(0)) == 3


def test_a_process_without_training_writes_nothing(tmp_path: Path, jobs: list[Job]) -> None:
    job = Job(tmp_path, snippet(tmp_path, "import torch\ntorch.save(torch.ones(3), '/dev/null')\n"))
    jobs.append(job)
    assert job.end() == 0, job.tail()
    assert list(job.hook_dir.iterdir()) == []


def test_compiled_code_and_elastic_error_files_are_as_without_it(
    torch_forks: TorchForks, tmp_path: Path, jobs: list[Job]
) -> None:
    error_file = tmp_path / "error.json"
    code = """
        import os
        import torch, torch.distributed as dist
        from torch import nn
        from torch.distributed.elastic.multiprocessing.errors import record

        def collective(tensor):
            tensor = tensor * 2
            dist.all_reduce(tensor)
            return tensor + 1

        def modes(model, tensor):
            model.eval()
            result = model(tensor)
            model.train()
            return result

        @record
        def main():
            dist.init_process_group("gloo", init_method=f"file://{os.environ['STORE']}", rank=0, world_size=1)
            model = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
            optimizer = torch.optim.SGD(model.parameters(), 0.1)
            forward = torch.compile(model, backend="aot_eager", fullgraph=True)
            for _ in range(3):
                forward(torch.ones(2, 4)).sum().backward()
                optimizer.step()
            compiled = torch.compile(collective, backend="aot_eager", fullgraph=True)
            assert compiled(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]
            torch.compile(modes, backend="aot_eager", fullgraph=True)(model, torch.ones(2, 4))
            torch.jit.script(model)(torch.ones(2, 4)).sum().backward()
            raise KeyError("on purpose")

        main()
    """
    more = {"STORE": str(tmp_path / "store"), "TORCHELASTIC_ERROR_FILE": str(error_file)}
    job = Job(tmp_path, script(tmp_path, code), forks=torch_forks, **more)
    jobs.append(job)
    assert job.end() == 1
    assert "on purpose" in json.dumps(json.loads(error_file.read_text())), job.tail()
    header = job.header(0)
    assert header is not None
    assert (header.recorded, header.errors, header.exit_code) == (3, 0, 1)
    (note,) = job.hook_dir.glob("*.last")
    assert json.loads(note.read_text())["message"] == "KeyError: 'on purpose'"
