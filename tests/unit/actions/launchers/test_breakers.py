"""One silent job holds no other back, and a service that is away is probed in turn."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.doubles import SCOPE, ManualClock
from trainwarden.actions.launchers.breakers import Breakers
from trainwarden.actions.launchers.kubernetes import api
from trainwarden.actions.launchers.slurm.commands import Commands
from trainwarden.actions.launchers.webhook import client as webhook
from trainwarden.actions.launchers.webhook.client import Answer
from trainwarden.errors import LauncherError, LauncherUnavailable

PAUSE_S = 5.0


class Asked:
    """A service of many jobs: each question to a silent job, or while it is away, costs `PAUSE_S`."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.breakers = Breakers(PAUSE_S)
        self.silent: set[str] = set()
        self.away = False
        self.reached: Counter[str] = Counter()

    def ask(self, job: str) -> bool:
        """Whether there was an answer."""
        with self.breakers.about(job):
            try:
                self.breakers.admit(self.clock.now_s())
            except LauncherUnavailable:
                return False
            self.reached[job] += 1
            if self.away or job in self.silent:
                self.clock.sleep(PAUSE_S)
                self.breakers.silent("it did not answer", self.clock.now_s())
                return False
            self.breakers.answered()
            return True


def test_a_silent_job_holds_no_other_back() -> None:
    service = Asked()
    service.silent = {"a"}
    assert [service.ask(job) for job in "abcabc"] == [False, True, True, False, True, True]
    assert service.reached == {"a": 1, "b": 2, "c": 2}


def test_silent_jobs_together_cost_half_of_the_time_at_most_and_the_others_none_of_their_turns() -> None:
    service = Asked()
    service.silent = set("abcd")
    while (begin_s := service.clock.now_s()) < 1_000.0:
        answered = {job for job in "abcdefgh" if service.ask(job)}
        assert begin_s < 100.0 or answered == set("efgh")
        service.clock.sleep(0.5)
    assert sum(service.reached[job] for job in "abcd") * PAUSE_S < 600.0
    assert max(service.reached[job] for job in "abcd") - min(service.reached[job] for job in "abcd") <= 1


def test_a_service_that_is_away_costs_one_limit_at_a_time_and_each_job_probes_in_its_turn() -> None:
    service = Asked()
    service.away = True
    jobs = [f"j{number}" for number in range(20)]
    begin_s = service.clock.now_s()
    for _ in range(40):
        tick_s = service.clock.now_s()
        assert not any(service.ask(job) for job in jobs)
        assert service.clock.now_s() - tick_s <= 2 * PAUSE_S
        service.clock.sleep(PAUSE_S)
    assert service.clock.now_s() - begin_s < 900.0
    assert set(service.reached) == set(jobs)
    service.away = False
    for _ in range(40):
        answers = [service.ask(job) for job in jobs]
        service.clock.sleep(PAUSE_S)
    assert all(answers)


def test_a_job_that_waits_for_its_turn_and_never_comes_again_stops_nobody() -> None:
    service = Asked()
    service.silent = {"a", "b"}
    assert [service.ask(job) for job in "abc"] == [False, False, False]
    service.clock.sleep(100.0)
    assert service.ask("d")
    assert service.ask("a") is False
    assert service.ask("d")


class Desk:
    """Each launcher's way to its service, silent about one job; `answers` says whether the other is answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._patch, self._folder = monkeypatch, folder

    def webhook(self) -> Any:
        (self._folder / "secret").write_text("s" * 32)
        (self._folder / "secret").chmod(0o600)
        config = webhook.WebhookConfig(url="http://service/x", secret_file=str(self._folder / "secret"))
        launcher = webhook.WebhookLauncher(config, SCOPE)

        def exchanged(body: bytes, **_headers: str) -> Answer:
            if b"silent" in body:
                raise LauncherUnavailable("service did not answer within 5 s")
            return Answer(200, "application/json", b'{"job": "other", "phase": "running", "generation": 1}')

        self._patch.setattr(launcher._exchange, "ask", exchanged)
        return launcher.state

    def slurm(self) -> Any:
        program = self._folder / "squeue"
        program.write_text('#!/bin/sh\ncase "$*" in *silent*) sleep 20;; *) echo "7 RUNNING";; esac\n')
        program.chmod(0o755)
        commands = Commands(str(self._folder), None, 2.0)

        def numbers(job: str) -> object:
            with commands.about(job):
                return commands.numbers(job)

        return numbers

    def kubernetes(self) -> Any:
        pytest.importorskip("kubernetes")
        server = api.Api(None, None, 5.0)

        def exchanged(_method: str, path: str, *_more: object) -> tuple[int, bytes]:
            if "silent" in path:
                raise LauncherUnavailable("Kubernetes did not answer within 5 s")
            return 200, b"{}"

        self._patch.setattr(server, "_exchange", exchanged)

        def get(job: str) -> object:
            with server.about(job):
                return server.get(f"/jobs/{job}", dict)

        return get


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["webhook", "slurm", "kubernetes"])
def test_each_launcher_asks_about_others_while_one_job_is_silent(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str
) -> None:
    ask = getattr(Desk(monkeypatch, tmp_path), kind)()
    for _ in range(2):
        with pytest.raises(LauncherUnavailable, match="did not answer"):
            ask("silent")
        try:
            assert ask("other") is not None
        except LauncherUnavailable as error:
            raise AssertionError(f"the other job was not asked: {error}") from error
        except LauncherError:
            pass
