"""Heavy libraries stay where they are needed: the command line's start and the agent are light."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

HEAVY = ("numpy", "scipy", "sklearn", "pandas", "torch", "mlflow", "stumpy", "tslearn", "ruptures", "pyarrow")


def modules_after(statement: str) -> set[str]:
    code = f"import json, sys; {statement}; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(json.loads(done.stdout))


def test_the_command_line_starts_light() -> None:
    loaded = modules_after("import trainwarden.cli.main")
    assert not loaded & {
        *HEAVY,
        "kafka",
        "prometheus_client",
        "trainwarden.collectors.agent.agent",
        "trainwarden.detectors.service",
    }


@pytest.mark.parametrize(
    "module",
    [
        "trainwarden.collectors.agent.agent",
        "trainwarden.collectors.gpu.collector",
        "trainwarden.collectors.nic.collector",
        "trainwarden.collectors.host.collector",
        "trainwarden.collectors.logs.collector",
        "trainwarden.collectors.prometheus.collector",
    ],
)
def test_the_agent_needs_no_heavy_library(module: str) -> None:
    assert not modules_after(f"import {module}") & set(HEAVY)


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["trainwarden.detectors.service", "trainwarden.dashboards.web.server"])
def test_services_beside_a_command_start_without_readers_of_tables(module: str) -> None:
    """A detector and a page start with each `watch` and `launch`: pandas and httpx are a third of that."""
    assert not modules_after(f"import {module}") & {"pandas", "pyarrow", "scipy", "sklearn", "torch", "httpx", "rich"}


@pytest.mark.thorough
def test_a_training_imports_what_it_uses() -> None:
    """All distributions of scipy take a second of a processor, and scikit-learn was wanted for one curve."""
    loaded = modules_after("import trainwarden.trainer_offline.service.train, trainwarden.trainer_offline.fit.plots")
    assert not loaded & {"scipy.stats", "sklearn", "mlflow"}


def test_the_hook_imports_the_standard_library_alone() -> None:
    loaded = modules_after("import trainwarden.hook")
    foreign = {name.partition(".")[0] for name in loaded} - set(sys.stdlib_module_names) - {"trainwarden", "__main__"}
    # What site-packages' own .pth files load at every start is not the hook's doing.
    foreign -= {name.partition(".")[0] for name in modules_after("pass")}
    assert foreign == set()
