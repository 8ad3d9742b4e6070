"""Pictures for the docs, by a real browser: our own page and report, and MLflow's pages about our models.

    python -m tests.screenshots                        # captures three demos first (about three minutes)
    python -m tests.screenshots --data recordings/
    python -m tests.screenshots --only page            # half a minute
    python -m tests.screenshots --only demo            # a minute: what the demo found
    python -m tests.screenshots --only dashboards      # two minutes: what the dashboards' panels show

Pages are waited for by what a person reads on them, so that no picture of an empty or failed page can be written.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from io import BytesIO
from pathlib import Path
from typing import Any

from tests import dashboard_screenshots, page_screenshots
from tests.places import ROOT
from tests.servers.chromium import Chromium
from tests.servers.mlflow import MlflowServer

WARDEN = [sys.executable, "-m", "trainwarden.cli.main"]
DOCS = ROOT / "docs" / "images"
DETECTOR = "pca"
SEEDS = (0, 1)  # the second run splits the jobs otherwise, and makes challengers
COLORS = 96
# MLflow greets a new browser with a dialog and a chat panel; both remember here that they were sent away.
SENT_AWAY = {
    "_mlflow_model_registry_promo_modal_dismissed_v1": "true",
    "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": "true",
    "mlflow.assistant.panelOpen_v1": "false",
}
LARGEST_IMAGE = "return Math.max(0, ...[...document.querySelectorAll('img')].map(one => one.naturalWidth))"
ROWS = "return [...document.querySelectorAll('[role=row], tr')].map(one => one.innerText)"


def enter(browser: Chromium, server: MlflowServer) -> None:
    """Open the registry for the first time and send the greetings away."""
    browser.open(f"{server.uri}/#/models")
    browser.shows("Registered Models")
    browser.run("for (const [key, value] of Object.entries(arguments[0])) localStorage.setItem(key, value)", SENT_AWAY)
    browser.run("location.reload()")


def models(browser: Chromium, server: MlflowServer, *, names: list[str]) -> None:
    """The list of registered models, all of `names` on it."""
    browser.open(f"{server.uri}/#/models")
    browser.shows("Registered Models", *names)


def versions(browser: Chromium, server: MlflowServer, name: str, aliases: dict[str, str]) -> None:
    """One model's versions: the row of each version shows its aliases and its tag ``gate``."""

    def shown() -> bool:
        rows = [str(row) for row in browser.run(ROWS)]
        return all(
            any(f"Version {version}" in row and re.search(rf"@\s*{alias}\b", row) and "gate" in row for row in rows)
            for alias, version in aliases.items()
        )

    browser.open(f"{server.uri}/#/models/{name}")
    browser.until(f"versions {aliases} of {name}", shown)


def plot(browser: Chromium, server: MlflowServer, run_id: str, file: str) -> None:
    """One picture of a run, drawn by the run's page."""
    experiment = server.ask(f"runs/get?run_id={run_id}", method="GET")["run"]["info"]["experiment_id"]
    browser.open(f"{server.uri}/#/experiments/{experiment}/runs/{run_id}/artifacts/plots/{file}")
    # In the title, the path and, last, the list of files.
    browser.until(f"{file} in the list", lambda: browser.text().count(file) >= 3)
    browser.until("the plot", lambda: int(browser.run(LARGEST_IMAGE)) > 400)


def train(data: Path, uri: str, seed: int, config: Path | None = None) -> dict[str, Any]:
    """The answer of a real `trainwarden train`."""
    command = [*WARDEN, "train", "--data", str(data), "--registry", uri, "--seed", str(seed), "--json"]
    command += [] if config is None else ["--config", str(config)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode != 0:
        raise AssertionError(f"trainwarden train ended with {done.returncode}:\n{done.stderr[-3000:]}")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def captured(folder: Path) -> Path:
    """Recordings of three demos without a fault."""
    for seed in range(3):
        keep = ["--seed", str(seed), "--steps", "90", "--keep", str(folder / f"demo-{seed}")]
        subprocess.run([*WARDEN, "demo", "--fault", "none", *keep], check=True, timeout=200)
    return folder


def write(picture: bytes, path: Path, colors: int = COLORS) -> None:
    """Save with few colours: a page has no more."""
    from PIL import Image

    with Image.open(BytesIO(picture)) as image:
        image.convert("RGB").quantize(colors, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path} ({path.stat().st_size // 1000} kB)")


def main() -> None:
    """Look and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="recorded folders; by default three demos are captured")
    parser.add_argument("--to", type=Path, default=DOCS)
    parser.add_argument("--only", choices=("page", "demo", "dashboards", "mlflow"))
    said = parser.parse_args()
    said.to.mkdir(parents=True, exist_ok=True)
    if said.only in (None, "page"):
        page_screenshots.pictures(said.to, write)
    if said.only in (None, "demo"):
        page_screenshots.found(said.to, write)
    if said.only in (None, "dashboards"):
        dashboard_screenshots.pictures(said.to, write)
    if said.only in (None, "mlflow"):
        of_mlflow(said.to, said.data)


def of_mlflow(to: Path, data: Path | None) -> None:
    """Train, look, write."""
    with tempfile.TemporaryDirectory(prefix="trainwarden-screenshots-") as temporary:
        place = Path(temporary)
        data = data or captured(place / "data")
        server = MlflowServer(place / "server")
        server.start()
        try:
            answer, _ = [train(data, server.uri, seed) for seed in SEEDS]
            name = f"trainwarden-{DETECTOR}"
            names = [f"trainwarden-{one['detector'].replace('_', '-')}" for one in answer["models"]]
            with Chromium(place / "browser", 1500, 760) as browser:
                enter(browser, server)
                models(browser, server, names=names)
                write(browser.picture(), to / "mlflow-models.png")
                plot(browser, server, answer["run_id"], f"{DETECTOR}-time-lines.png")
                write(browser.picture(), to / "mlflow-plot.png")
            with Chromium(place / "tall", 1500, 1440) as browser:
                enter(browser, server)
                versions(browser, server, name, server.model(name)["aliases"])
                write(browser.picture(), to / "mlflow-versions.png")
        finally:
            server.kill()


if __name__ == "__main__":
    main()
