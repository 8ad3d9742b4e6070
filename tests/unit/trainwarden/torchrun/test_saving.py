"""Real processes that are asked to save: no signal goes to one that would die of it."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from trainwarden.torchrun.saving import Saving

CATCHES = "import signal, time; signal.signal(10, lambda *_: print('saved', flush=True)); "
SAVES = CATCHES + "signal.pthread_sigmask(signal.SIG_UNBLOCK, [10]); print('up', flush=True); "
BLOCKS = CATCHES + "signal.pthread_sigmask(signal.SIG_BLOCK, [10]); print('up', flush=True); "
DEAF = "import time; print('up', flush=True); "
WAITS = "[time.sleep(0.05) for _ in range(2000)]"
Started = dict[str, "subprocess.Popen[bytes]"]


@pytest.fixture
def ranks() -> Iterator[Started]:
    started = {}
    for name, program in (("saves", SAVES), ("deaf", DEAF), ("blocks", BLOCKS)):
        started[name] = subprocess.Popen([sys.executable, "-c", program + WAITS], stdout=subprocess.PIPE)
        assert started[name].stdout.readline() == b"up\n"
    yield started
    for one in started.values():
        one.kill()
        one.stdout.close()
        one.wait()


def test_ranks_that_catch_the_signal_save(ranks: Started) -> None:
    saving = Saving("USR1", lambda: [ranks["saves"].pid])
    assert saving.possible()
    saving.ask()
    assert ranks["saves"].stdout.readline() == b"saved\n"


@pytest.mark.thorough
@pytest.mark.parametrize("other", ["deaf", "blocks"])
def test_nothing_is_sent_where_one_rank_would_die_of_it_or_not_hear_it(ranks: Started, other: str) -> None:
    saving = Saving("USR1", lambda: [ranks["saves"].pid, ranks[other].pid])
    assert not saving.possible()
    saving.ask()
    time.sleep(0.3)
    assert [one.poll() for one in ranks.values()] == [None, None, None]


@pytest.mark.parametrize("name", ["", "KILL", "RTMAX+900", "DFL"])
def test_what_is_no_signal_is_never_sent(ranks: Started, name: str) -> None:
    assert not Saving(name, lambda: [ranks["saves"].pid]).possible()


def test_without_ranks_nothing_can_be_saved() -> None:
    assert not Saving("USR1", list).possible()
