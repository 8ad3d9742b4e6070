"""`trainwarden completion SHELL`: the script by which a shell completes our commands and options."""

from __future__ import annotations

import sys
from typing import Annotated

import typer


def completion(
    shell: Annotated[str, typer.Argument(help="bash, zsh or fish.")],
) -> int:
    """Print what makes a shell complete commands and options; `source <(trainwarden completion bash)`."""
    from typer._completion_shared import get_completion_script

    from trainwarden.errors import ConfigError

    if shell not in ("bash", "zsh", "fish"):
        raise ConfigError(f"completion: '{shell}' is not known; bash, zsh and fish are")
    script = get_completion_script(prog_name="trainwarden", complete_var="_TRAINWARDEN_COMPLETE", shell=shell)
    sys.stdout.write(script + "\n")
    return 0
