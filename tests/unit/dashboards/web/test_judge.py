"""A range judged in a process of its own, which may be slow, large, wrong or broken."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import sys
from asyncio.subprocess import PIPE
from typing import Any

import pytest

from tests.doubles import metric_value
from tests.web_doubles import NOW_S, OBSERVE, Web, heartbeat, incident, verdict
from trainwarden.dashboards.web import judge as judging
from trainwarden.dashboards.web.judge import MOST_WAITING, Judge
from trainwarden.dashboards.web.problems import Problem
from trainwarden.self_metrics import SelfMetrics

ECHO = "import json, sys; print(json.dumps({'jobs': [{'job': sys.argv[1:]}]}))"


def judge(script: str, **limits: Any) -> Judge:
    return Judge((sys.executable, "-c", script), SelfMetrics("serve"), **limits)


def judged(script: str, **limits: Any) -> Any:
    return asyncio.run(judge(script, **limits).judge("j", 1.0, 2.5))


def refused(script: str, **limits: Any) -> Problem:
    with pytest.raises(Problem) as raised:
        judged(script, **limits)
    return raised.value


def ends(pid: int) -> bool:
    """Whether the process ends within a minute: one that is killed is still there for a moment."""
    try:
        process = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    with os.fdopen(process):
        return bool(select.select([process], [], [], 60.0)[0])


def test_its_answer_is_passed_on_whether_it_found_something_or_not():
    expected = {"jobs": [{"job": ["--job=j", "--from=1.0", "--to=2.5", "--json"]}]}
    assert judged(ECHO) == expected
    assert judged(ECHO + "; sys.exit(1)") == expected


def test_a_name_that_looks_like_an_option_is_none():
    said = asyncio.run(judge(ECHO).judge("--data=/etc", 1.0, 2.0))
    assert said["jobs"][0]["job"][0] == "--job=--data=/etc"


def test_wrong_use_is_told():
    script = (
        "import sys; print('log', file=sys.stderr); print('trainwarden: no \\x1b[2J job', file=sys.stderr); sys.exit(2)"
    )
    problem = refused(script)
    assert (problem.status, problem.detail) == (422, "trainwarden: no  [2J job")


@pytest.mark.parametrize("script", ["raise SystemExit(3)", "print('no json')", "print('[1]')", "import os; os.abort()"])
def test_what_breaks_is_a_500(script):
    assert refused(script).status == 500


@pytest.mark.thorough
def test_what_takes_too_long_is_ended_with_all_that_it_started(tmp_path):
    script = (
        "import subprocess, sys, time; child = subprocess.Popen(['sleep', '300']); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(child.pid)); time.sleep(300)"
    )
    for timeout_s in (2.0, 8.0, 32.0):  # a busy machine may need longer to get as far as the child
        assert refused(script, timeout_s=timeout_s).status == 504
        if (tmp_path / "pid").exists() and (tmp_path / "pid").read_text():
            break
    assert ends(int((tmp_path / "pid").read_text()))


def test_what_says_too_much_is_ended():
    assert refused("import sys\nwhile True: sys.stdout.write('x' * 65536)").status == 422


def test_the_end_of_one_that_had_filled_its_pipe_is_heard(monkeypatch: pytest.MonkeyPatch):
    """asyncio stops reading a pipe that nobody takes from, and tells of no end before the pipe's."""
    monkeypatch.setattr(judging, "MAX_ANSWER_BYTES", 10)

    async def late() -> int:
        script = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", script, stdout=PIPE, stderr=PIPE, start_new_session=True
        )
        while len(process.stdout._buffer) <= 2**17:
            await asyncio.sleep(0.01)
        assert [*await judging._outputs(process)] == [None, b""]
        return await asyncio.wait_for(process.wait(), 60.0)

    assert asyncio.run(late()) == -signal.SIGKILL


def test_what_complains_without_end_fills_no_memory():
    assert judged("import sys\nfor _ in range(200): sys.stderr.write('x' * 65536)\nprint('{}')") == {}


@pytest.mark.thorough
def test_its_memory_is_bounded():
    problem = refused("import time; time.sleep(0.3); x = bytearray(3 * 1024**3); print('{}')", memory_bytes=1024**3)
    assert problem.status == 500
    assert "MemoryError" in problem.detail


def test_one_at_a_time_and_few_wait():
    async def crowd() -> list[Any]:
        one = judge("import os, signal; os.kill(os.getpid(), signal.SIGSTOP); print('{}')")
        asked = [asyncio.create_task(one.judge("j", 1.0, 2.0)) for _ in range(1 + MOST_WAITING + 2)]
        refusals = [task for task in asked[-2:]]
        await asyncio.wait(refusals, timeout=10.0)
        errors = [task.exception() for task in refusals]
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        return errors

    errors = asyncio.run(crowd())
    assert [(error.status, error.headers) for error in errors] == [(429, {"retry-after": "60"})] * 2


def test_over_http():
    web = Web(detect=(sys.executable, "-c", ECHO))
    web.tell(heartbeat(), incident(), verdict())
    now = web.act("/api/v1/detect", {"job": "j"}, token=OBSERVE).json()
    assert (now["verdict"]["at_s"], [one["id"] for one in now["incidents"]]) == (NOW_S, ["i1"])
    response = web.act("/api/v1/detect", {"job": "j", "from_s": 1.0, "to_s": 2.0}, token=OBSERVE)
    assert response.json()["jobs"][0]["job"][:2] == ["--job=j", "--from=1.0"]
    assert metric_value(web.metrics, "judgements_total", outcome="done") == 1.0


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({}, 400),
        ({"job": "k"}, 404),
        ({"job": "j", "from_s": 1.0}, 422),
        ({"job": "j", "from_s": 2.0, "to_s": 2.0}, 422),
        ({"job": "j", "from_s": 0.0, "to_s": 1e9}, 422),
        ({"job": "j", "since": "30m"}, 400),
    ],
)
def test_wrong_ranges(body, status):
    web = Web(detect=("/nowhere",))
    web.tell(heartbeat())
    assert web.act("/api/v1/detect", body, token=OBSERVE).status_code == status
