"""What a watched command has started and left behind: it goes on after the command's end, and nobody watches it.

A process is known by the hook's folder in its environment, as that is the run's own.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from trainwarden.cli.shared.answers import Blind
from trainwarden.hook import headers_in

MOST_NAMED: Final = 3
MAX_BYTES: Final = 1_000_000  # of an environment
WORDS: Final = 80  # characters of a command line
REMEDY: Final = "have the command wait for what it starts, without nohup, setsid, & or a daemon's fork"


def left_behind(hook: Path, own: Collection[int], steps: int | None, proc: Path = Path("/proc")) -> Blind | None:
    """Why a command that has ended is not judged to its end; None if it has left nothing that matters.

    Helpers that outlive a job which has trained, such as a viewer of its logs, do not matter.

    Parameters
    ----------
    hook : Path
        The hook's folder, resolved.
    own : collection of int
        Processes of ours.
    steps : int, optional
        Training steps that were seen.
    """
    there = {pid: words for pid, words in _with_environment(f"TRAINWARDEN_HOOK_DIR={hook}", proc) if pid not in own}
    trainers = {header.pid for header in headers_in(hook) if header.phase != "exit"}
    found = [pid for pid in there if pid in trainers or not steps]
    if not found:
        return None
    named = ", ".join(f"{there[pid]} (pid {pid})" for pid in found[:MOST_NAMED])
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return Blind(f"the command has ended, and what it started goes on unwatched: {named}{more}", REMEDY)


def _with_environment(entry: str, proc: Path) -> Iterator[tuple[int, str]]:
    """The pid and the command line of each process that has `entry` in its environment."""
    wanted = os.fsencode(entry)
    for name in sorted(filter(str.isdecimal, os.listdir(proc)), key=int):
        try:
            with (proc / name / "environ").open("rb") as file:
                if wanted not in file.read(MAX_BYTES).split(b"\0"):
                    continue
            words = (proc / name / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
        except OSError:  # it has ended, or is another user's
            continue
        yield int(name), "".join(sign if sign.isprintable() else "?" for sign in words[:WORDS])
