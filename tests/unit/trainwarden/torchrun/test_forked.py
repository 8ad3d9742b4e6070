"""What torchrun's rendezvous does in children that are forked of it, and not in theirs."""

from __future__ import annotations

import os
import signal
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")


def test_a_child_of_a_rank_keeps_the_handlers_of_its_script() -> None:
    from trainwarden.torchrun.rendezvous import Handler

    forgot: list[int] = []
    handler = Handler.__new__(Handler)
    handler._agent = SimpleNamespace(forget=lambda: forgot.append(1))
    handler._pid = os.getpid()  # so this process is none of its children, as a rank's child is none
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    own = signal.getsignal(signal.SIGTERM)
    try:
        handler._forked()
        assert (signal.getsignal(signal.SIGTERM), forgot) == (own, [])
        handler._pid = os.getppid()
        handler._forked()
        assert (signal.getsignal(signal.SIGTERM), forgot) == (signal.SIG_DFL, [1])
    finally:
        signal.signal(signal.SIGTERM, before)
