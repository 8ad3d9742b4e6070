"""What a user installs: the wheel's top-level names, its data files, its entry points."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from collectors.nccl_profiler import build
from tests.places import ROOT

pytestmark = pytest.mark.system

PACKAGES = {"trainwarden", "collectors", "detectors", "trainer_offline", "actions", "dashboards"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    source = out / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True, timeout=60)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(out)]
    done = subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = out.glob("trainwarden-*.whl")
    return wheel


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_top_level_names(names: list[str]) -> None:
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if ".d" not in name} == PACKAGES


def test_data_files_are_in(names: list[str]) -> None:
    wanted = {
        "trainwarden/py.typed", "trainwarden/catalogue.toml", "trainwarden/inject/sitecustomize.py",
        "detectors/logs/rules.toml", "detectors/logs/xid.toml",
        "dashboards/prometheus/trainwarden.rules.yml", "dashboards/grafana/job.json",
        "dashboards/provisioning/alerting/rules.yml", "dashboards/provisioning/datasources/trainwarden.yml",
        "dashboards/page/templates/base.html", "dashboards/page/static/page.js", "dashboards/page/static/page.css",
    }  # fmt: skip
    assert wanted <= set(names)
    assert any(name.endswith("share/trainwarden/examples/train_gpt.py") for name in names)
    assert any(name.endswith("entry_points.txt") for name in names)


@pytest.mark.skipif(build.state() is not None and "no C compiler" in str(build.state()), reason="no C compiler")
def test_the_plug_in_for_nccl_is_in_compiled_and_the_wheel_is_of_this_platform(
    wheel: Path, names: list[str], tmp_path: Path
) -> None:
    assert re.search(r"-py3-none-linux_\w+\.whl$", wheel.name)
    (library,) = [name for name in names if name.endswith(".so")]
    zipfile.ZipFile(wheel).extract(library, tmp_path)
    ctypes.CDLL(str(tmp_path / library)).ncclProfiler_v5  # noqa: B018 - it is there
