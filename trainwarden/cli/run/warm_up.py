"""The warm-up check of `trainwarden launch`: a validation of the ranks' places before any rank is started."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.stop_signals import stop_signals
from trainwarden.errors import LauncherError

if TYPE_CHECKING:
    from trainwarden.actions.validation.results import Validation


def warm_up(nproc: int, voice: Voice, *, checkpoints: Path | None, config: Path | None) -> None:
    """Return if `trainwarden validate` accuses nobody of `nproc` ranks here.

    It is a process of its own, so that what watches a job imports no torch; a signal to us is passed on to it.

    Raises
    ------
    LauncherError
        If somebody is accused, in one sentence that names rank and node, or if it came to no end.
    SystemExit
        With the code of a signal that we had meanwhile, also where the validation was done by then.
    """
    import msgspec

    from trainwarden.actions.validation.results import Validation

    with tempfile.TemporaryDirectory(prefix="trainwarden-") as folder:
        target = Path(folder) / "validation.json"
        command = [
            sys.executable,
            "-m",
            "trainwarden.cli.main",
            "validate",
            "--nproc",
            str(nproc),
            "--json",
            str(target),
        ]
        command += [] if checkpoints is None else ["--checkpoints", str(_there(checkpoints))]
        command += [] if config is None else ["--config", str(config)]
        code = _run(command, voice)
        if not target.exists():
            raise LauncherError(f"not started: the validation ended with code {code} and no result")
        result = msgspec.json.decode(target.read_bytes(), type=Validation)
    if result.accused:
        voice.answer({"validation": result, "exit_code": 1})
        raise LauncherError(refusal(result))


def refusal(result: Validation) -> str:
    """Why a job is not started.

    Examples
    --------
    >>> from trainwarden.actions.validation.results import Finding, Validation
    >>> slow = Finding(kind="slow_compute", text="rank 3 on node-b computes 1.40 times as long as its peers")
    >>> refusal(Validation(ranks=8, accused=(slow, slow)))
    'not started: rank 3 on node-b computes 1.40 times as long as its peers; and 1 more'
    """
    more = f"; and {len(result.accused) - 1} more" if len(result.accused) > 1 else ""
    return f"not started: {result.accused[0].text}{more}"


def _there(folder: Path) -> Path:
    """`folder`, or where the training script will make it."""
    return next(one for one in (folder, *folder.absolute().parents) if one.exists())


def _run(command: list[str], voice: Voice) -> int:
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=voice.stream, stderr=voice.stream)
    asked: list[int] = []

    def pass_on(number: int, _frame: object) -> None:
        asked.append(number)
        process.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in stop_signals()}
    try:
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if asked:
        raise SystemExit(128 + asked[0])
    return code
