"""Shared by all tests: real servers, skipped with the reason where they cannot run."""

from __future__ import annotations

import gc
import os
import re
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import pytest
from hypothesis import settings

from tests import nccl_player, not_run
from tests.examples import SAME_CASES, cases
from tests.servers.kafka import BRIEF, KafkaBroker, ServerMissing, archive_classes
from tests.servers.missing import refuse
from trainwarden.collectors.nccl_profiler import build

SYSTEM_ALONE = re.compile(r"^pytestmark = \[?\s*pytest\.mark\.system\b", re.MULTILINE)

STARVED = 4.0  # seen: a quarter of the two processors for an hour, the rest "stolen" (proc_stat(5)) by others
# Machines are shared: no deadline.
settings.register_profile("shared", max_examples=cases(100), deadline=None, derandomize=SAME_CASES)
settings.load_profile("shared")
# Begun in a shell's background this process ignores Ctrl-C, and so would all whom tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# tslearn is compared with on a few small series; compiling it takes longer than all of them.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")
# Several workers share the cores: threads of the linear algebra that spin for each other double what training takes.
for _name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """In CI a limit is for what hangs: a machine that is starved from outside takes many times as long."""
    if SAME_CASES:
        for item in items:
            limit = item.get_closest_marker("timeout")
            limit_s = float(limit.args[0] if limit is not None else config.getini("timeout"))
            item.add_marker(pytest.mark.timeout(STARVED * limit_s), append=False)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """One line says which tests were not run and why; workers (pytest-xdist) leave it to who has started them."""
    if hasattr(config, "workerinput"):
        return
    reports = terminalreporter.stats.get("skipped", [])
    found = [(one.fspath, str(one.longrepr[2]).removeprefix("Skipped: ")) for one in reports if one.longrepr]
    not_run.keep(found)
    if config.getoption("lf", default=False):
        again = [one for outcome in ("passed", "failed") for one in terminalreporter.stats.get(outcome, [])]
        not_run.keep((one.nodeid, not_run.AGAIN) for one in again if one.when == "call")
    if found:
        terminalreporter.write_line(not_run.line(found))


@pytest.fixture(scope="session", autouse=True)
def _runs_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Runs that tests start are not kept beside those of the person who tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session")
def require_servers() -> Callable[[str], NoReturn]:
    """Called with the reason why a server cannot run: skips, or fails under ``TRAINWARDEN_REQUIRE_SERVERS=1``."""
    return refuse


@pytest.fixture(scope="session")
def compiler() -> list[str]:
    """The C compiler's command."""
    try:
        return build.compiler()
    except build.NoCompilerError as missing:
        refuse(str(missing))


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory, compiler: list[str]) -> tuple[Path, Path]:
    """NCCL's plug-in and its player, compiled once."""
    return nccl_player.compile_plugin(tmp_path_factory.mktemp("nccl"))


@pytest.fixture(scope="session")
def kafka_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KafkaBroker]:
    """One real broker for all tests of this run; tests that kill a broker start their own."""
    with started_kafka(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture
def own_kafka_broker(tmp_path: Path) -> Iterator[KafkaBroker]:
    """A real broker for one test alone, to be killed and restarted."""
    with started_kafka(tmp_path / "kafka") as broker:
        yield broker


@contextmanager
def started_kafka(folder: Path, properties: Sequence[str] = ()) -> Iterator[KafkaBroker]:
    """A broker with its data in `folder`, and more lines of properties; the test skips where there can be none."""
    try:
        archive_classes(folder.with_name("archive"))
        broker = KafkaBroker(folder, options=BRIEF, properties=properties)
    except ServerMissing as missing:
        refuse(str(missing))
    broker.start()
    try:
        yield broker
    finally:
        broker.stop()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where no system test is asked for, files of nothing else are not imported: torch alone takes six seconds."""
    if collection_path.suffix != ".py" or not str(config.option.markexpr).startswith("not system"):
        return None
    return bool(SYSTEM_ALONE.search(collection_path.read_text(encoding="utf-8"))) or None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Thousands of tests that all stay are made: looking for garbage among them is a fifth of collecting."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


collect_ignore = ["hook_artefact.py", "data"]  # the first may be imported only before the package is
