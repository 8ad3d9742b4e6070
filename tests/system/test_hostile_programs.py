"""Programs that do what a hook might stumble over, with real torch: each behaves as if we were not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import pytest

import trainwarden
from tests.places import ROOT
from tests.torch_forks import TorchForks
from trainwarden import hook
from trainwarden.cli.setup import hook_file

pytestmark = [pytest.mark.system, pytest.mark.timeout(180)]

pytest.importorskip("torch")


def run(forks: TorchForks, folder: Path, program: str, *, form: str = "package", ends: int = 0) -> str:
    """Run `program` under the hook, as package or as one file; what it printed."""
    (folder / "hook").mkdir(exist_ok=True)
    load = "import torch\nfrom trainwarden import hook as watcher\n"
    if form == "file":
        (folder / "trainwarden_hook.py").write_text(hook_file.text())
        load = "import torch\nimport trainwarden_hook as watcher\n"
    script = folder / "train.py"
    script.write_text(load + "watcher.autoload()\n" + textwrap.dedent(program))
    environ = {
        **os.environ, "TRAINWARDEN_HOOK_DIR": str(folder / "hook"), "RANK": "0", "WORLD_SIZE": "1",
        "TORCH_DEVICE_BACKEND_AUTOLOAD": "0", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT),
    }  # fmt: skip
    out, err = folder / "out.txt", folder / "err.txt"
    done = forks.start([str(script)], environ, folder=folder, log=out, err=err)
    assert done.wait() == ends, out.read_text()[-2000:] + err.read_text()[-3000:]
    return out.read_text()


def header(folder: Path) -> hook.Header:
    (path,) = (folder / "hook").glob("*.hook")
    found = hook.read_header(path)
    assert found is not None
    return found


COMPILED = """
from torch._dynamo.testing import CompileCounter

class Plain(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-0.01)

model = torch.nn.Linear(4, 4)
graphs = CompileCounter()
step = torch.compile(Plain(model.parameters()).step, fullgraph=WHOLE, backend=graphs)
for _ in range(20):
    model(torch.ones(2, 4)).sum().backward()
    step()
print(graphs.frame_count)
"""


@pytest.mark.parametrize("form", ["package", "file"])
@pytest.mark.parametrize("whole", [True, False])
def test_an_optimizer_is_compiled_in_one_graph_and_its_steps_are_known(
    form: str, torch_forks: TorchForks, tmp_path: Path, *, whole: bool
) -> None:
    assert run(torch_forks, tmp_path, COMPILED.replace("WHOLE", str(whole)), form=form) == "1\n"
    assert header(tmp_path).recorded == 20


@pytest.mark.parametrize("form", ["package", "file"])
def test_a_process_group_made_in_python_is_not_called_for_ever(
    form: str, torch_forks: TorchForks, tmp_path: Path
) -> None:
    """One that overrides nothing, and one that hands on to the base class what it overrides."""
    program = """
    import torch.distributed as dist
    watcher.autoload()

    class Plain(dist.ProcessGroup):
        pass

    class Handing(dist.ProcessGroup):
        def allreduce(self, *args):
            return super().allreduce(*args)

    for kind in (Plain, Handing):
        try:
            kind(0, 1).allreduce([torch.ones(2)])
        except RuntimeError as error:
            print(type(error).__name__, "No backend" in str(error))
    """
    assert run(torch_forks, tmp_path, program, form=form) == "RuntimeError True\n" * 2


@pytest.mark.parametrize("form", ["package", "file"])
def test_each_error_of_a_signal_handler_reaches_the_program(form: str, torch_forks: TorchForks, tmp_path: Path) -> None:
    """A timer whose handler raises, some thousand times in the midst of collective calls."""
    program = """
    import os, signal, sys
    import torch.distributed as dist

    class TimeIsUp(Exception):
        pass

    told = 0

    def handler(*_):
        global told
        told += 1
        raise TimeIsUp

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    data, heard = torch.ones(4), 0
    dist.all_reduce(data)
    signal.signal(signal.SIGALRM, handler)
    while told < 1500:
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.0002)
            for _ in range(100):
                dist.all_reduce(data)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except TimeIsUp:
            heard += 1
    signal.setitimer(signal.ITIMER_REAL, 0)
    mine = vars(sys)["_trainwarden_hook"]
    print(told == heard, mine.thread.inside, mine.thread.paused, mine.words[7] & 7)
    os._exit(0)
    """
    waiting = hook.PHASES.index("wait")
    out = run(torch_forks, tmp_path, program, form=form).split()
    assert out[:3] == ["True", "False", "0"]
    assert int(out[3]) != waiting
    assert header(tmp_path).errors == 0


@pytest.mark.parametrize("form", ["package", "file"])
def test_the_programs_own_faulthandler_stays_the_programs(form: str, torch_forks: TorchForks, tmp_path: Path) -> None:
    """Asked for late, it writes where the program says, also in a forked child and while the interpreter ends."""
    program = """
    import atexit, faulthandler, os, signal, sys
    theirs, late = open("theirs.txt", "w"), open("late.txt", "w")
    atexit.register(faulthandler._sigsegv)  # runs after whatever the hook registers
    faulthandler.register(signal.SIGUSR1, late)
    watcher.iteration()
    print(faulthandler.is_enabled())
    faulthandler.enable(theirs)
    print(faulthandler.is_enabled())
    if not os.fork():
        print(faulthandler.is_enabled(), flush=True)
        os._exit(0)
    os.wait()
    os.kill(os.getpid(), signal.SIGUSR1)
    sys.stdout.flush()
    """
    assert run(torch_forks, tmp_path, program, form=form, ends=-11).split() == ["False", "True", "True"]
    assert "Segmentation fault" in (tmp_path / "theirs.txt").read_text()
    assert "train.py" in (tmp_path / "late.txt").read_text()


def test_a_program_that_wants_no_faulthandler_has_none(torch_forks: TorchForks, tmp_path: Path) -> None:
    program = """
    import faulthandler
    watcher.iteration()
    print(faulthandler.disable(), faulthandler.is_enabled())
    faulthandler._sigsegv()
    """
    run(torch_forks, tmp_path, program, ends=-11)
    assert [path.read_text() for path in (tmp_path / "hook").glob("*.fault")] == [""]


DAMAGES = ("half a file", "no file", "not to be read", "another language", "a folder")


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("way", ["entry point", "sitecustomize"])
def test_a_damaged_installation_breaks_no_import_of_torch(
    damage: str, way: str, torch_forks: TorchForks, tmp_path: Path
) -> None:
    """By the entry point that torch calls at the end of its import, and by the folder on PYTHONPATH."""
    place = tmp_path / "site"
    package = place / "trainwarden"
    shutil.copytree(Path(trainwarden.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    about = place / "trainwarden-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: trainwarden\nVersion: 0.1.0\n")
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    entry = settings["project"]["entry-points"]["torch.backends"]["trainwarden"]
    (about / "entry_points.txt").write_text(f"[torch.backends]\ntrainwarden = {entry}\n")
    if way == "sitecustomize":
        shutil.rmtree(about)
    broken = package / "hook" / "steps.py"
    text = broken.read_text()
    broken.unlink()
    if damage == "half a file":
        broken.write_text(text[: len(text) // 2] + "\n    def")
    elif damage == "not to be read":
        broken.symlink_to("/proc/self/mem")
    elif damage == "another language":
        broken.write_bytes(b"\xff\xfe\x00match x:\n")
    elif damage == "a folder":
        broken.mkdir()
    (tmp_path / "hook").mkdir()
    by_torch = way == "entry point"
    paths = [place] if by_torch else [package / "inject", place]
    environ = {
        **os.environ, "TRAINWARDEN_HOOK_DIR": str(tmp_path / "hook"),
        "TORCH_DEVICE_BACKEND_AUTOLOAD": str(int(by_torch)), "PYTHONPATH": os.pathsep.join(map(str, paths)),
    }  # fmt: skip
    script, out, err = tmp_path / "train.py", tmp_path / "out.txt", tmp_path / "err.txt"
    script.write_text("import torch; print(int(torch.ones(3).sum()))\n")
    if by_torch and damage != "half a file":
        code = torch_forks.start([str(script)], environ, folder=tmp_path, log=out, err=err).wait()
    else:
        with out.open("wb") as told, err.open("wb") as wrong:
            done = subprocess.run([sys.executable, str(script)], cwd=tmp_path, stdout=told, stderr=wrong, env=environ,
                                  timeout=150, check=False)  # fmt: skip
        code = done.returncode
    assert (code, out.read_text()) == (0, "3\n"), err.read_text()[-3000:]
