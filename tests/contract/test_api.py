"""The API is what its schema says: drawn requests by schemathesis, right and wrong ones, with and without a token."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, assume, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import CHECKS, load_all_checks

from tests.web_doubles import ACT, Web, action, heartbeat, incident, verdict
from trainwarden.dashboards.web.openapi.document import document
from trainwarden.dashboards.web.openapi.operations import OPERATIONS
from trainwarden.dashboards.web.request_model import Nothing
from trainwarden.records import Suspect, Vote

load_all_checks()
HEADERS = {"Host": "localhost"}
NODE_WORDS = [f"/api/v1/nodes/{{id}}/{word}" for word in ("set-healthy", "cordon", "uncordon")]
UNSAID = {path: [CHECKS.get_one("positive_data_acceptance")] for path in ("/api/v1/silences", *NODE_WORDS)}
"""A silence needs one of three names and an end that is near, a node a name that can be read and a job that it is
reached through: no schema says that, so it may be refused (422)."""


def web() -> Web:
    web = Web()
    web.overview.ready = True
    named = (Suspect(score=0.9, reason="slowest", rank=2, node="n1"),)
    web.tell(heartbeat(), incident(suspects=named), action(), verdict(votes={"lof": Vote(opinion="normal")}))
    return web


@pytest.fixture(scope="module")
def schema():
    schema = schemathesis.openapi.from_asgi("/openapi.json", web().app, headers=HEADERS)
    # More alerts than the schema allows may be more bytes than we read: refused as too large, before they are counted.
    rejection = schema.config.checks.negative_data_rejection
    rejection.expected_statuses = [*rejection.expected_statuses, "413"]
    return schema


def named(operations):
    return pytest.mark.parametrize("one", operations, ids=lambda one: f"{one.method} {one.path}")


def drawn(operation, mode: GenerationMode) -> None:
    """Requests drawn, sent and held against the schema by every check that there is."""

    @settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
    @given(case=operation.as_strategy(generation_mode=mode))
    def check(case):
        assume([] not in case.query.values())  # nothing of it would be sent, and so nothing be wrong
        headers = HEADERS | {"Authorization": f"Bearer {ACT}"}
        case.call_and_validate(headers=headers, excluded_checks=UNSAID.get(operation.path, []))

    check()


@pytest.mark.thorough
@named(OPERATIONS)
def test_right_requests(schema, one):
    drawn(schema[one.path][one.method.upper()], GenerationMode.POSITIVE)


@pytest.mark.thorough
@named([one for one in OPERATIONS if one.body or one.asked is not Nothing])
def test_wrong_requests(schema, one):
    drawn(schema[one.path][one.method.upper()], GenerationMode.NEGATIVE)


def test_every_route_for_programs_is_told_and_nothing_else():
    app = web().app._app
    routes = {
        (method.lower(), route.path.replace("{id:path}", "{id}"))
        for route in app.routes
        for method in route.methods - {"HEAD"}
        if route.path != "/enter"  # of the page: people's browsers ask it
    }
    assert routes == {(one.method, one.path) for one in OPERATIONS}
    assert document()["openapi"] == "3.1.0"
