"""What a user installs: the wheel's top-level names, its data files, its entry points."""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import get_args

import pytest

from tests.places import ROOT
from trainwarden.collectors.nccl_profiler import build
from trainwarden.records import IncidentKind

pytestmark = pytest.mark.system

BELOW = ("actions", "collectors", "dashboards", "detectors", "trainer_offline")
"""Folders of a clone that are installed below `trainwarden`: users have packages of such names."""


def clone(place: Path) -> Path:
    source = place / "source"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(source)], check=True, timeout=60)
    return source


def built(source: Path, out: Path, **environ: str) -> Path:
    """The wheel that pip makes of `source`."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", str(out)]
    done = subprocess.run(
        [*command, str(source)], env={**os.environ, **environ}, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = out.glob("trainwarden-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("wheel")
    return built(clone(out), out)


@pytest.fixture(scope="module")
def names(wheel: Path) -> list[str]:
    return zipfile.ZipFile(wheel).namelist()


def test_one_top_level_name(names: list[str]) -> None:
    top = {name.split("/")[0] for name in names}
    assert {name for name in top if ".d" not in name} == {"trainwarden"}
    assert {f"trainwarden/{name}/__init__.py" for name in BELOW} <= set(names)


def test_the_source_distribution_makes_the_same_wheel(names: list[str], tmp_path: Path) -> None:
    """It holds the packages where the wheel has them: an archive need not keep links."""
    source = clone(tmp_path)
    build = "import setuptools.build_meta as b, sys; print(b.build_sdist(sys.argv[1]))"
    command = [sys.executable, "-c", build, str(tmp_path)]
    subprocess.run(command, cwd=source, check=True, timeout=120, capture_output=True)
    (archive,) = tmp_path.glob("trainwarden-*.tar.gz")
    with tarfile.open(archive) as packed:
        assert not [one.name for one in packed if one.issym() or one.islnk()]
        packed.extractall(tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    made = built(unpacked, tmp_path)
    assert sorted(zipfile.ZipFile(made).namelist()) == sorted(names)


def test_data_files_are_in(names: list[str]) -> None:
    wanted = {
        "trainwarden/py.typed", "trainwarden/catalogue.toml", "trainwarden/inject/sitecustomize.py",
        "trainwarden/actions/remedies/remedies.toml", "trainwarden/detectors/logs/rules.toml",
        "trainwarden/detectors/logs/xid.toml", "trainwarden/dashboards/prometheus/trainwarden.rules.yml",
        "trainwarden/dashboards/grafana/job.json", "trainwarden/dashboards/provisioning/alerting/rules.yml",
        "trainwarden/dashboards/provisioning/datasources/trainwarden.yml",
        "trainwarden/dashboards/page/templates/base.html", "trainwarden/dashboards/page/static/page.js",
        "trainwarden/dashboards/page/static/page.css", "trainwarden/collectors/nccl_profiler/interface.h",
    }  # fmt: skip
    wanted |= {f"trainwarden/dashboards/explain/runbooks/{kind}.md" for kind in get_args(IncidentKind)}
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


def test_a_pure_wheel_has_all_but_the_plug_in_and_every_file_says_one_version(names: list[str], tmp_path: Path) -> None:
    made = built(clone(tmp_path), tmp_path, TRAINWARDEN_PURE="1")
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert made.name == f"trainwarden-{version}-py3-none-any.whl"
    pure = set(zipfile.ZipFile(made).namelist())
    assert {name for name in set(names) ^ pure if ".data/" not in name} <= {
        "trainwarden/collectors/nccl_profiler/libnccl-profiler-trainwarden.so"
    }
    chart = (ROOT / "docker" / "helm" / "trainwarden" / "Chart.yaml").read_text(encoding="utf-8")
    assert re.findall(r"(?m)^(?:appV|v)ersion: (\S+)$", chart) == [version, version]
    assert f"TRAINWARDEN_VERSION:-{version}" in (ROOT / "docker" / "compose.yaml").read_text(encoding="utf-8")
    assert f"\n## {version}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
