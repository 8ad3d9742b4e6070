"""docker/Dockerfile, its steps done for real in a chroot, and the image's own check of health."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

import pytest

from tests.places import ROOT
from tests.servers.image import BUILD_TIMEOUT_S, ImageBuilder
from tests.servers.kafka import ServerMissing
from tests.servers.missing import refuse
from trainwarden.metrics_http.server import serve_metrics
from trainwarden.self_metrics import SelfMetrics
from trainwarden.settings import Settings

pytestmark = [pytest.mark.system, pytest.mark.timeout(BUILD_TIMEOUT_S)]

EXTRAS: Final = os.environ.get("TRAINWARDEN_IMAGE_EXTRAS")
"""What to build the image with; `make image` says so, as it takes minutes."""
WRITABLE: Final = ("/run/", "/var/lib/trainwarden", "/var/tmp")
CHECK: Final = ROOT / "docker" / "healthcheck.py"


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ImageBuilder]:
    if not EXTRAS:
        refuse("an image takes minutes to build: make image", "image")
    folder = tmp_path_factory.mktemp("image")
    try:
        builder = ImageBuilder(folder)
        builder.build(EXTRAS)
    except ServerMissing as missing:
        refuse(str(missing), "image")
    yield builder
    builder.close()


def test_every_service_starts_from_the_image_as_a_user_without_rights(image: ImageBuilder) -> None:
    config = image.config()
    assert (config["User"], config["Entrypoint"]) == ("10001:10001", ["trainwarden"])
    assert config["Healthcheck"]["Test"][0] == "CMD"
    assert image.run("id", "-u").strip() == "10001"
    assert image.run("trainwarden", "--version").startswith("trainwarden ")
    for service in ("agent", "detector", "engine", "archive"):
        assert f"trainwarden {service} " in image.run("trainwarden", service, "--help")
    settings = """echo 'bus = "embedded:bus.db"' > t.toml; trainwarden check-config t.toml; trainwarden doctor"""
    assert "t.toml: fine\n" in image.run("sh", "-c", settings)


def test_a_service_does_its_work_in_it_and_its_check_of_health_knows(image: ImageBuilder) -> None:
    script = """
        export TRAINWARDEN_BUS=embedded:bus.db TRAINWARDEN_DETECTION_METRICS_PORT=18762
        export TRAINWARDEN_HEALTH_URL=http://127.0.0.1:18762/metrics
        healthy() { python3 /opt/trainwarden/healthcheck.py; }
        healthy > /dev/null && exit 7
        timeout 60 trainwarden detector 2> log & service=$!
        for _ in $(seq 150); do healthy > /dev/null && break; sleep 0.2; done
        healthy || { cat log; exit 8; }
        kill -TERM $service && wait $service && grep 'service ends' log
    """
    assert "service=detector" in image.run("sh", "-c", script)


def test_nothing_in_it_may_be_changed_and_no_torch_comes_along(image: ImageBuilder) -> None:
    writable = image.run("sh", "-c", "find / -xdev -writable ! -type l -path '/[^dpst]*' 2>/dev/null | sort")
    assert [line for line in writable.splitlines() if not line.startswith(WRITABLE)] == []
    installed = image.run("sh", "-c", "ls /opt/trainwarden/lib/python3*/site-packages").split()
    assert {"torch", "nvidia", "triton"} & set(installed) == set()
    assert "pynvml.py" in installed
    assert image.run("sh", "-c", "ls /").split().count("src") == 0


def test_nccl_s_plug_in_is_in_it_and_its_compiler_is_not(image: ImageBuilder) -> None:
    loads = (
        "from trainwarden.collectors.nccl_profiler.build import LIBRARY\n"
        "import ctypes; ctypes.CDLL(str(LIBRARY)).ncclProfiler_v5"
    )
    image.run("/opt/trainwarden/bin/python", "-c", loads)
    assert image.run("sh", "-c", "command -v cc gcc || echo none").strip() == "none"


def test_the_dockerfile_compiles_in_its_build_stage_alone() -> None:
    stages = (ROOT / "docker" / "Dockerfile").read_text(encoding="utf-8").split("FROM ${BASE}")
    assert len(stages) == 3
    assert "gcc libc6-dev" in stages[1]
    assert stages[1].index("gcc libc6-dev") < stages[1].index("pip wheel")
    assert "apt-get" not in stages[2]
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert "**/*.so" in ignored  # what this checkout has compiled is of another machine


def asked(url: str | None) -> tuple[int, str]:
    """Exit code and words of the check."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("TRAINWARDEN_HEALTH")}
    done = subprocess.run(
        [sys.executable, "-I", str(CHECK)],
        env=environ if url is None else {**environ, "TRAINWARDEN_HEALTH_URL": url},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    return done.returncode, done.stdout


def test_health_is_an_answer_and_work_that_goes_on() -> None:
    metrics = SelfMetrics("heartbeat")  # trainwarden_heartbeat_timestamp_seconds, as the services tell it
    url = f"http://127.0.0.1:{serve_metrics(metrics, 0, Settings())}/metrics"
    assert asked(None) == (0, "")
    assert asked(url) == (0, "")
    metrics.gauge("timestamp_seconds", "Newest round of work.", time.time() - 5.0, service="detector")
    assert asked(url) == (0, "")
    metrics.gauge("timestamp_seconds", "Newest round of work.", time.time() - 100.0, service="detector")
    code, said = asked(url)
    assert (code, "the newest round of work ended 10" in said) == (1, True)
    assert asked("http://127.0.0.1:1/metrics")[0] == 1
    assert asked("nonsense")[0] == 1
