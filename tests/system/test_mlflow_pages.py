"""MLflow's own pages in a real browser: a person sees versions, aliases and plots there, and acts by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests import screenshots
from tests.servers.chromium import Chromium
from tests.servers.kafka import ServerMissing
from tests.servers.mlflow import MlflowServer
from tests.trained_models import TrainedModels
from trainwarden.trainer_offline.registry.registry import Registry
from trainwarden.trainer_offline.registry.version import CHAMPION

# MLflow and what it stands on warn of their own making.
pytestmark = [pytest.mark.system, pytest.mark.filterwarnings("ignore"), pytest.mark.timeout(600)]

NAME = "trainwarden-pca"
# As MLflow's pages do it: their own script asks the same paths of the same origin.
ASK = """
const [path, method, body] = arguments;
const request = new XMLHttpRequest();
request.open(method, 'ajax-api/2.0/mlflow/' + path, false);
request.setRequestHeader('Content-Type', 'application/json');
request.send(JSON.stringify(body));
return request.status
"""


@pytest.fixture(scope="module")
def pages(
    trained_models: TrainedModels, tmp_path_factory: pytest.TempPathFactory, require_servers: Callable[[str], Any]
) -> Iterator[tuple[MlflowServer, Chromium]]:
    """A server with two runs of a real training, and a browser that looks at it."""
    place = tmp_path_factory.mktemp("pages")
    try:
        browser = Chromium(place / "browser", 1500, 900)
    except ServerMissing as missing:
        require_servers(str(missing))
    server = trained_models.server(place / "server")
    server.start()
    try:
        with browser:
            screenshots.enter(browser, server)
            yield server, browser
    finally:
        server.kill()


def test_the_pages_show_models_versions_aliases_and_plots(
    pages: tuple[MlflowServer, Chromium], trained_models: TrainedModels
) -> None:
    server, browser = pages
    first = trained_models.first
    names = [f"trainwarden-{one['detector'].replace('_', '-')}" for one in first["models"]]
    screenshots.models(browser, server, names=names)
    aliases = server.model(NAME)["aliases"]
    assert aliases.keys() == {"champion", "challenger"}
    screenshots.versions(browser, server, NAME, aliases)
    rows = [str(row) for row in browser.run(screenshots.ROWS)]
    assert any("gate" in row and "data_hash" in row for row in rows), "a version's tags are shown"
    screenshots.plot(browser, server, first["run_id"], "pca-time-lines.png")
    assert browser.picture().startswith(b"\x89PNG")


def test_what_a_person_does_on_the_pages_is_what_we_follow(
    pages: tuple[MlflowServer, Chromium],
) -> None:
    """The calls that MLflow's pages make; that services react to them is shown in test_mlflow."""
    server, browser = pages
    registry = Registry.at(server.uri)
    aliases = server.model(NAME)["aliases"]
    assert registry.aliases(CHAMPION)["pca"] == aliases["champion"]
    move = {"name": NAME, "alias": "champion", "version": aliases["challenger"]}
    assert browser.run(ASK, "registered-models/alias", "POST", move) == 200
    screenshots.models(browser, server, names=[NAME])
    screenshots.versions(browser, server, NAME, {"champion": aliases["challenger"]})
    assert registry.aliases(CHAMPION)["pca"] == aliases["challenger"]
    tag = {"name": NAME, "key": "retrain", "value": "requested"}
    assert browser.run(ASK, "registered-models/set-tag", "POST", tag) == 200
    assert registry.asked_to_retrain() == ["pca"]
