"""The rendezvous that `up` serves: a job joins it by what is printed, and nobody else's engine is answered."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.trainwarden.hook.test_planted_files import in_time
from trainwarden.actions.remedies.policy import Mode
from trainwarden.cli.shared.rendezvous_beside import RendezvousBeside
from trainwarden.settings import Settings


def beside(path: Path, mode: Mode = "observe", **settings: Any) -> RendezvousBeside:
    path.mkdir(exist_ok=True)
    engine = msgspec.structs.replace(Settings().engine, mode=mode, launcher_settings=settings)
    return RendezvousBeside(msgspec.structs.replace(Settings(), engine=engine), path, "embedded:bus.db")


def until_said(one: RendezvousBeside) -> str:
    def look() -> str:
        while (sentence := one.news()) is None:
            pass
        return sentence

    return str(in_time(look))


def test_two_on_one_machine_have_ports_and_tokens_of_their_own(tmp_path: Path) -> None:
    both = [beside(tmp_path / name) for name in "ab"]
    try:
        words = [until_said(one) for one in both]
        assert all("PET_RDZV_CONF=token_file=" in one for one in words)
        endpoints = [one.engine["TRAINWARDEN_ENGINE_LAUNCHER_SETTINGS"] for one in both]
        assert len({one.partition("endpoint")[2] for one in endpoints}) == 2
        tokens = [(tmp_path / name / "rendezvous.token").read_text() for name in "ab"]
        assert len({*tokens}) == 2
        assert (tmp_path / "a" / "rendezvous.token").stat().st_mode & 0o077 == 0
        assert [one.news() for one in both] == [None, None]
    finally:
        for one in both:
            one.close()


@pytest.mark.thorough
def test_an_endpoint_that_is_taken_is_said_once_and_the_command_once_it_is_free(tmp_path: Path) -> None:
    taken = socket.create_server(("127.0.0.1", 0))
    port = taken.getsockname()[1]
    one = beside(tmp_path / "a", endpoint=f"127.0.0.1:{port}")
    try:
        assert one.engine == {}  # as the settings have it
        assert until_said(one).startswith("no rendezvous is served here yet: ")
        assert one.news() is None
        taken.close()
        assert f"PET_RDZV_ENDPOINT=127.0.0.1:{port}" in until_said(one)
    finally:
        taken.close()
        one.close()


def test_an_engine_with_another_launcher_needs_none(tmp_path: Path) -> None:
    engine = msgspec.structs.replace(Settings().engine, launcher="webhook")
    one = RendezvousBeside(msgspec.structs.replace(Settings(), engine=engine), tmp_path, "embedded:bus.db")
    assert (one.news(), one.engine) == (None, {})


@pytest.mark.parametrize(("mode", "restarts"), [("observe", False), ("confirm", False), ("auto", True)])
def test_only_in_auto_the_printed_command_lets_failed_ranks_start_again(
    tmp_path: Path, mode: Mode, restarts: bool
) -> None:
    one = beside(tmp_path / "a", mode)
    try:
        assert ("max_failures=1,renew=no torchrun" in until_said(one).replace("'", "")) is not restarts
    finally:
        one.close()
