"""Whatever answers where a Prometheus should: one clear sentence, or a partial answer that says so."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.servers.bad_prometheus import Answer, BadPrometheus, counts, success
from trainwarden.errors import ConfigError, DataError
from trainwarden.prometheus import client as client_module
from trainwarden.prometheus import reading as reading_module
from trainwarden.prometheus.client import Access, PrometheusClient
from trainwarden.prometheus.pieces import Ask
from trainwarden.prometheus.reading import Fleet, read_fleet

pytestmark = pytest.mark.system
END_S = 1_750_000_000.0
NAMES = ("gpu_temperature_celsius", "gpu_row_remap_failure_state")


def read(url: str, timeout_s: float = 10.0, **more: Any) -> Fleet:
    with PrometheusClient(Access(url, timeout_s=timeout_s, **more)) as client:
        return read_fleet(client, Ask("", END_S - 1800.0, END_S, wanted=NAMES))


def matrix(asked: dict[str, str]) -> bool:
    return asked.get("query", "").endswith("]")


def test_a_good_one_is_read_whole() -> None:
    with BadPrometheus() as server:
        fleet = read(server.url)
    gpus = fleet.families["gpu"]
    assert fleet.notes == []
    assert gpus.names == NAMES
    assert [who.device for who in gpus.rows] == ["0", "1", "2", "3"]
    assert gpus.measured == 4 * 120


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        ((401, {}, b"Unauthorized"), "lets nobody in with this token or password .HTTP 401"),
        ((403, {}, b"{}"), "lets nobody in with this token or password .HTTP 403"),
        ((404, {}, b"<html>nothing here</html>"), "is no Prometheus: HTTP 404"),
        ((404, {}, b'{"x": ' + b"[" * 5000), "is no Prometheus: HTTP 404"),
        ((302, {"Location": "http://127.0.0.1:1/"}, b""), "is no Prometheus: HTTP 302"),
        ((200, {}, b"<html>a proxy's page</html>"), "is no Prometheus"),
        ((200, {}, b'{"status": "success", "data": {"a": 1}}'), "is no Prometheus"),
        ((200, {}, b'{"status": "error", "data": [], "error": "out \x1b[31mof disk"}'), "is no Prometheus|failed"),
        ((400, {}, b'{"status": "error", "error": "bad \\u001b[31mquery"}'), "take the question: bad  .31mquery"),
        ((503, {}, b'{"status": "error", "error": "overloaded"}'), "cannot answer that much .HTTP 503: overloaded"),
        ((200, {"Content-Encoding": "gzip"}, b"no gzip"), "broke off|is no Prometheus"),
        (success([]), "has no metric of dcgm-exporter or node_exporter"),
        (success(["up", "go_goroutines"]), "has no metric of dcgm-exporter or node_exporter"),
    ],
)  # fmt: skip
def test_the_first_question_is_answered_badly(answer: Answer, sentence: str) -> None:
    with BadPrometheus(lambda path, asked: answer) as server, pytest.raises(DataError, match=sentence) as told:
        read(server.url)
    assert "\n" not in str(told.value)
    assert "\x1b" not in str(told.value)


def test_nobody_is_there() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(DataError, match=f"no Prometheus answers at {url}: "):
            read(url)


def test_one_that_drips_is_given_up() -> None:
    with BadPrometheus() as server:
        server.drip_s = 0.05
        with pytest.raises(DataError, match=r"did not answer within 0\.5 s"):
            read(server.url, timeout_s=0.5)


def test_one_that_breaks_off_is_asked_again_and_then_told() -> None:
    with BadPrometheus() as server:
        server.promise = 1000
        with pytest.raises(DataError, match="broke off"):
            read(server.url)
        assert len(server.asked) == 2


def test_an_answer_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "MAX_ANSWER_BYTES", 100_000)
    endless = b'{"status": "success", "data": [' + b'"x",' * 100_000
    server = BadPrometheus(lambda path, asked: (200, {}, endless))
    with server, pytest.raises(DataError, match="larger than 100000 bytes"):
        read(server.url)


@pytest.mark.parametrize("code", [413, 422, 503])
def test_what_is_too_much_is_asked_for_in_halves(code: int) -> None:
    def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
        if not matrix(asked):
            return None
        return (code, {}, b"") if int(asked["query"].rpartition("[")[2][:-2]) > 600 else None

    with BadPrometheus(behaviour) as server:
        fleet = read(server.url)
    assert fleet.notes == []
    assert fleet.families["gpu"].measured == 4 * 120


@pytest.mark.parametrize("number", ["many", "NaN", "+Inf", "-1e400"])
def test_counts_that_are_none_cost_nothing(number: str) -> None:
    def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
        if not asked.get("query", "").startswith(("sum", "count")):
            return None
        one = {"metric": {"__name__": "DCGM_FI_DEV_GPU_TEMP"}, "value": [0, number]}
        return success({"resultType": "vector", "result": [one]})

    with BadPrometheus(behaviour) as server:
        fleet = read(server.url)
    assert fleet.notes == []
    assert fleet.families["gpu"].measured == 4 * 120


def test_halves_are_not_more_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
        if not matrix(asked):
            return (503, {}, b"") if "query" in asked else None
        return (413, {}, b"") if int(asked["query"].rpartition("[")[2][:-2]) > 150 else None

    monkeypatch.setattr(reading_module, "MAX_CELLS", 4 * len(NAMES) * 121)
    with BadPrometheus(behaviour) as server:
        assert read(server.url).families["gpu"].measured == 4 * 120


def test_answers_are_bounded_by_the_commonest_metric() -> None:
    def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
        query = asked.get("query", "")
        if query.startswith("count by"):
            return counts(DCGM_FI_DEV_GPU_TEMP=4, DCGM_FI_DEV_ROW_REMAP_FAILURE=25_000)
        if query.startswith("sum(") and "REMAP" in query:
            return success({"resultType": "vector", "result": [{"metric": {}, "value": [0, "3000000"]}]})
        return None

    with BadPrometheus(behaviour) as server:
        fleet = read(server.url)
        windows = [int(asked["query"].rpartition("[")[2][:-2]) for _, asked, _ in server.asked if matrix(asked)]
    assert max(windows) <= 1800 / 10 + 60
    assert fleet.families["gpu"].measured == 4 * 120


def test_one_that_hangs_half_way_is_given_up_soon() -> None:
    over = threading.Event()

    def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
        if matrix(asked) and "REMAP" in asked["query"]:
            over.wait(30.0)
        return None

    begun_s = time.monotonic()
    with BadPrometheus(behaviour) as server:
        server.good = hundred(server.good)  # type: ignore[method-assign]
        fleet = read(server.url, timeout_s=0.3)
        over.set()
        hung = [asked for _, asked, _ in server.asked if matrix(asked) and "REMAP" in asked["query"]]
    assert fleet.families["gpu"].names == NAMES[:1]
    assert "did not answer within" in fleet.notes[0]
    assert len(hung) <= 4 * 3
    assert time.monotonic() - begun_s < 20.0


def hundred(good: Callable[[str, dict[str, str]], Answer]) -> Callable[[str, dict[str, str]], Answer]:
    """The same, of so many samples that there are ten pieces of each metric."""

    def answer(path: str, asked: dict[str, str]) -> Answer:
        if asked.get("query", "").startswith("sum("):
            return success({"resultType": "vector", "result": [{"metric": {}, "value": [0, "3000000"]}]})
        return good(path, asked)

    return answer


def test_one_metric_that_cannot_be_had_makes_the_answer_partial() -> None:
    def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
        return (503, {}, b"") if "REMAP" in asked.get("query", "") else None

    with BadPrometheus(behaviour) as server:
        fleet = read(server.url)
    assert fleet.families["gpu"].names == NAMES[:1]
    assert len(fleet.notes) == 1
    assert fleet.notes[0].startswith("DCGM_FI_DEV_ROW_REMAP_FAILURE: the Prometheus at http://127.0.0.1")


def test_warnings_make_the_answer_partial() -> None:
    with BadPrometheus() as server:
        good = server.good

        def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
            code, headers, body = good(path, asked)
            whole = {**json.loads(body), "warnings": ["store s-3 is away"]}
            return (code, headers, json.dumps(whole).encode()) if matrix(asked) else None

        server.behaviour = behaviour
        fleet = read(server.url)
    assert "DCGM_FI_DEV_GPU_TEMP: the answer is partial (store s-3 is away)" in fleet.notes


def test_without_range_selectors_it_is_read_by_query_range_and_said() -> None:
    with BadPrometheus() as server:
        good = server.good

        def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
            if path.endswith("query_range"):
                return good(path, {"query": f"{asked['query']}[1800s]", "time": asked["end"]})
            return (400, {}, b"{}") if matrix(asked) else None

        server.behaviour = behaviour
        fleet = read(server.url)
    assert fleet.families["gpu"].measured == 4 * 120
    assert "read by query_range" in fleet.notes[0]


def test_one_that_goes_away_while_it_is_read_leaves_a_partial_answer() -> None:
    def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
        return (401, {}, b"") if matrix(asked) and "REMAP" in asked["query"] else None

    with BadPrometheus(behaviour) as server:
        fleet = read(server.url)
    assert fleet.families["gpu"].names == NAMES[:1]
    assert "lets nobody in" in fleet.notes[0]


def test_exporters_that_call_a_host_by_its_short_and_full_name_mean_one() -> None:
    def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
        if not matrix(asked) or "REMAP" not in asked["query"]:
            return None
        series = {"metric": {"gpu": "9", "Hostname": "n0.example.org"}, "values": [[END_S - 20.0, "0"], [END_S, "0"]]}
        return success({"resultType": "matrix", "result": [series]})

    with BadPrometheus(behaviour) as server:
        fleet = read(server.url)
    assert {who.node for who in fleet.families["gpu"].rows} == {"n0"}


@pytest.mark.parametrize(
    "series",
    [
        {"metric": {"gpu": "<script>", "Hostname": "n0\n\x1b[31m"}, "values": [[END_S, "50"]]},
        {"metric": {"gpu": "x" * 100_000, "Hostname": "n"}, "values": [[END_S, "50"]]},
        {"metric": {}, "values": [[END_S, "50"]]},
        {"metric": {"gpu": "0", "Hostname": "n"}, "values": []},
        {"metric": {"gpu": "0", "Hostname": "n"}, "values": [[1e300, "50"], [-1e300, "50"], [0, "+Inf"], [1, "NaN"]]},
        {"metric": {"gpu": "0", "Hostname": "n"}, "values": [[END_S, "1e999"], [END_S, "-5e307"]]},
    ],
)
def test_odd_series_spoil_nothing(series: dict[str, Any]) -> None:
    def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
        if not matrix(asked) or "TEMP" not in asked["query"]:
            return None
        return success({"resultType": "matrix", "result": [series]})

    with BadPrometheus(behaviour) as server:
        fleet = read(server.url)
    assert fleet.families["gpu"].of("gpu_row_remap_failure_state") is not None
    assert all(len(who.device) <= 256 for who in fleet.families["gpu"].rows)


def test_a_value_that_is_no_number_costs_that_metric() -> None:
    def behaviour(path: str, asked: dict[str, str]) -> Answer | None:
        series = {"metric": {"gpu": "0", "Hostname": "n"}, "values": [[END_S, "fifty"]]}
        return success({"resultType": "matrix", "result": [series]}) if "REMAP" in asked.get("query", "") else None

    with BadPrometheus(behaviour) as server:
        fleet = read(server.url)
    assert "no number" in fleet.notes[0]
    assert fleet.families["gpu"].measured == 4 * 120


def test_the_token_is_sent_and_never_told(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret-token\n")
    with BadPrometheus() as server:
        read(server.url, token_file=tmp_path / "token")
        assert all(headers["Authorization"] == "Bearer s3cret-token" for *_, headers in server.asked)
        server.behaviour = lambda path, asked: (401, {}, b"")
        address = server.url.replace("http://", "http://user:pass-word@")
        with pytest.raises(DataError) as told:
            read(address)
        assert "pass-word" not in str(told.value)
        assert server.asked[-1][2]["Authorization"].startswith("Basic ")


@pytest.mark.parametrize("content", ["", " \n", "two words", "line\nline", "ü", "x" * 70_000])
def test_a_token_file_that_holds_no_token_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "token"
    path.write_text(content)
    with pytest.raises(ConfigError, match="must hold one token"):
        PrometheusClient(Access("http://127.0.0.1:1", token_file=path))


@pytest.mark.parametrize("url", ["", "prometheus:9090", "ftp://x", "http://", "http://[::1", "file:///etc/passwd"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--prometheus: "):
        PrometheusClient(Access(url))


def test_the_command_says_it_in_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "trainwarden.cli.main", "detect", "--prometheus"]
    with BadPrometheus(lambda path, asked: (401, {}, b"")) as server:
        done = subprocess.run([*command, server.url], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.splitlines()[-1].count("lets nobody in") == 1
    assert "Traceback" not in done.stderr
