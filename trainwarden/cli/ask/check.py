"""`trainwarden check`: what a monitoring system of the Nagios family asks."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from trainwarden.cli.ask.check_rules import Answer, State, limit_of, look, look_at_node
from trainwarden.cli.ask.jobs_on_bus import open_bus
from trainwarden.cli.shared.options import BusAddress, ConfigFile, JobName
from trainwarden.errors import BusUnavailable, WardenError

UNHEARD_S = "60"
SILENT_S = "180"


class CommandClass(TyperCommand):
    """A command of which wrong use is UNKNOWN, as Nagios has it, and not 2, which would be CRITICAL."""

    def make_context(self, info_name: str | None, args: list[str], parent: Any = None, **extra: Any) -> Any:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except WardenError as error:
            raise typer.Exit(_tell(Answer.of(State.UNKNOWN, str(error)))) from error
        except Exception as error:
            said = getattr(
                error, "format_message", None
            )  # what typer raises for wrong use; its class has no fixed home
            if said is None:
                raise
            raise typer.Exit(_tell(Answer.of(State.UNKNOWN, said()))) from error


def check(
    *,
    job: JobName = None,
    node: Annotated[str | None, typer.Option("--node", help="Only whether this node itself is at fault.")] = None,
    warning: Annotated[
        str, typer.Option("--warning", "-w", metavar="S", help="So many seconds unheard or unjudged are a warning.")
    ] = UNHEARD_S,
    critical: Annotated[
        str, typer.Option("--critical", "-c", metavar="S", help="So many seconds unheard or unjudged are critical.")
    ] = SILENT_S,
    bus: BusAddress = None,
    config: ConfigFile = None,
) -> int:
    """A Nagios or Icinga check: open incidents, silent jobs; exit codes 0 OK, 1 WARNING, 2 CRITICAL, 3 UNKNOWN.

    Of a node only open incidents count that name its hardware and suspect it most; a bus that is away is then UNKNOWN.

    Example: trainwarden check --bus kafka://broker:9092 --job llama-70b -w 60 -c 180
    """
    try:
        limits = limit_of("--warning", warning), limit_of("--critical", critical)
        with open_bus(bus, config, job) as connected:
            answer = look_at_node(connected, node, job) if node else look(connected, job, limits, time.time())
    except BusUnavailable as error:  # nothing is known of a node then, and whoever drains nodes drains none
        answer = Answer.of(State.UNKNOWN if node else State.CRITICAL, f"the bus is away: {error}")
    except WardenError as error:
        answer = Answer.of(State.UNKNOWN, str(error))
    except Exception as error:  # noqa: BLE001  # a traceback would end with 1, which Nagios takes for WARNING
        answer = Answer.of(State.UNKNOWN, f"the check itself failed: {type(error).__name__}: {error}")
    return _tell(answer)


def _tell(answer: Answer) -> int:
    typer.echo(answer.text())
    return int(answer.state)
