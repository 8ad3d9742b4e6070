"""`trainwarden up`: everything that one machine needs, in one command."""

from __future__ import annotations

import time
from pathlib import Path

from trainwarden.cli.serve.process import StopFlag, folders
from trainwarden.cli.shared.options import ConfigFile, RunDir
from trainwarden.cli.shared.output import Voice
from trainwarden.cli.shared.page_beside import PageBeside
from trainwarden.cli.shared.stack import LocalStack
from trainwarden.settings import load


def up(*, config: ConfigFile = None, run_dir: RunDir = None) -> int:
    """Agent, detector, engine and page on this machine with the embedded bus, until Ctrl-C.

    Example: trainwarden up --config trainwarden.toml
    """
    settings = load(config)
    voice = Voice()
    run, _ = folders(settings, run_dir)
    run = run.absolute()
    address = settings.bus
    if address.startswith("embedded:"):
        address = f"embedded:{Path(address.partition(':')[2]).absolute()}"
    stop = StopFlag()
    names = ("agent", "detector", "engine")
    stack = LocalStack(run, {"TRAINWARDEN_BUS": address}, config)
    for name in names:
        stack.start(name)
    page = PageBeside(stack, run)
    voice.say(f"agent, detector and engine are up on {address}; run folder {run}; stop with Ctrl-C")
    try:
        while not stop():
            time.sleep(0.2)
            stack.check(names)
            if (sentence := page.news()) is not None:
                voice.say(sentence)
    finally:
        stack.stop()
    return 0
