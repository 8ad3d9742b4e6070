"""What a person may say to the engine over HTTP: words on actions and nodes, stop, resume, reset, silences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from trainwarden.clock import Clock
from trainwarden.commands import builders
from trainwarden.commands.builders import EVERY_JOB, LONGEST_SILENCE_S
from trainwarden.commands.silences import silence_object
from trainwarden.dashboards.overview.job import waits
from trainwarden.dashboards.overview.overview import Overview
from trainwarden.dashboards.web.problems import Problem, answer
from trainwarden.dashboards.web.request_model import (
    CordonAsked,
    HealthyAsked,
    JobAsked,
    Nothing,
    SilenceAsked,
    WordAsked,
    body,
    query,
)
from trainwarden.errors import BusUnavailable, ConfigError
from trainwarden.records import ActionRecord, CommandRecord
from trainwarden.self_metrics import SelfMetrics

Word = Literal["approve", "deny"]


class CommandRoutes:
    """Words become `CommandRecord` on the bus, as those of the command line do; `by` is the token's name.

    Parameters
    ----------
    publish : callable
        Keeps a command on the bus before it returns; raises `BusUnavailable`, or `ConfigError` where words have to be
        signed and ours would not count.
    """

    def __init__(
        self, overview: Overview, clock: Clock, metrics: SelfMetrics, publish: Callable[[CommandRecord], None]
    ) -> None:
        self._overview = overview
        self._clock = clock
        self._metrics = metrics
        self._publish = publish

    def routes(self) -> list[Route]:
        """Where the words hang."""
        return [
            Route("/api/v1/actions/{id:path}/approve", self.approve, methods=["POST"]),
            Route("/api/v1/actions/{id:path}/deny", self.deny, methods=["POST"]),
            Route("/api/v1/stop", self.stop, methods=["POST"]),
            Route("/api/v1/resume", self.resume, methods=["POST"]),
            Route("/api/v1/reset", self.reset, methods=["POST"]),
            Route("/api/v1/nodes/{id:path}/set-healthy", self.set_healthy, methods=["POST"]),
            Route("/api/v1/nodes/{id:path}/cordon", self.cordon, methods=["POST"]),
            Route("/api/v1/nodes/{id:path}/uncordon", self.uncordon, methods=["POST"]),
            Route("/api/v1/silences", self.silence, methods=["POST"]),
            Route("/api/v1/silences", self.silences),
        ]

    async def approve(self, request: Request) -> Response:
        """Let an action that waits go ahead, by the plan that was shown."""
        asked = await body(request, WordAsked)
        said = await self.on_action("approve", request.path_params["id"], asked.plan_digest, _by(request))
        return answer({"command": command_object(said)}, 202)

    async def deny(self, request: Request) -> Response:
        """Have an action that waits given up."""
        asked = await body(request, WordAsked)
        said = await self.on_action("deny", request.path_params["id"], asked.plan_digest, _by(request))
        return answer({"command": command_object(said)}, 202)

    async def stop(self, request: Request) -> Response:
        """Stop all acting, on one job or on all, until somebody resumes."""
        job = (await body(request, JobAsked)).job
        return await self._say(builders.on_job("stop", job, _by(request), self._clock.now_s()))

    async def resume(self, request: Request) -> Response:
        """End a stop."""
        job = (await body(request, JobAsked)).job
        return await self._say(builders.on_job("resume", job, _by(request), self._clock.now_s()))

    async def reset(self, request: Request) -> Response:
        """Let nodes be taken out again, now that somebody has looked."""
        job = (await body(request, JobAsked)).job
        return await self._say(builders.on_job("reset", job, _by(request), self._clock.now_s()))

    async def set_healthy(self, request: Request) -> Response:
        """Say that a node is well."""
        why = (await body(request, HealthyAsked)).why
        return await self._say(builders.set_healthy(_node(request), why, _by(request), self._clock.now_s()))

    async def cordon(self, request: Request) -> Response:
        """Have a node taken out of use."""
        return await self._on_node("cordon", request, await body(request, CordonAsked))

    async def uncordon(self, request: Request) -> Response:
        """Have a node put back."""
        return await self._on_node("uncordon", request, await body(request, CordonAsked))

    async def silence(self, request: Request) -> Response:
        """Until a moment nothing is done about some incidents, and nobody is told of them."""
        said = await self.on_silence(await body(request, SilenceAsked), _by(request))
        return answer({"silence": silence_object(said)}, 202)

    async def silences(self, request: Request) -> Response:
        """The silences that stand."""
        query(request, Nothing)
        with self._overview.lock:
            standing = self._overview.silences.standing(self._clock.now_s())
        return answer({"silences": [silence_object(one) for one in standing]})

    async def on_action(self, word: Word, action: str, plan_digest: str, by: str) -> CommandRecord:
        """Say `word` on `action`; said again with the same digest, the answer is the same, whatever became of it.

        Raises
        ------
        Problem
            404 if there is none, 409 if it does not wait or another plan stands, 503 if the bus is away.
        """
        with self._overview.lock:
            known = self._known(action)
            seen = msgspec.structs.replace(known, plan_digest=plan_digest)
            command = builders.on_action(word, seen, by, self._clock.now_s())
            said = self._overview.said.get(command.id)
        if not waits(known) and said is not None:
            return said
        if not waits(known) or known.plan_digest != plan_digest:
            raise _refusal(known)
        await self.publish(said or command)
        with self._overview.lock:
            return self._overview.remember(said or command)

    async def on_silence(self, asked: SilenceAsked, by: str) -> CommandRecord:
        """Say a silence.

        Raises
        ------
        Problem
            422 if it is of everything or too long, 503 if the bus is away.
        """
        now_s = self._clock.now_s()
        if asked.job is None and asked.kind is None and asked.node is None:
            raise Problem(422, "a silence is of a job, a kind or a node; /api/v1/stop stops everything")
        if asked.until_s > now_s + LONGEST_SILENCE_S:
            raise Problem(422, f"until_s: a silence lasts {LONGEST_SILENCE_S / 86_400:.0f} days at most")
        command = builders.silence(by, now_s, asked.until_s, job=asked.job, incident_kind=asked.kind, node=asked.node)
        await self.publish(command)
        return command

    async def publish(self, command: CommandRecord) -> None:
        """Keep `command` on the bus.

        Raises
        ------
        Problem
            403 if the engine would not hear it from here, 503 if the bus is away.
        """
        try:
            await run_in_threadpool(self._publish, command)
        except ConfigError as error:
            raise Problem(403, str(error)) from None
        except BusUnavailable:
            raise Problem(503, "the bus is away; asking again is safe", {"retry-after": "5"}) from None
        self._metrics.count("commands_total", "Words of people that were kept on the bus.", kind=command.kind)

    def _known(self, action: str) -> ActionRecord:
        for job in self._overview.jobs.values():
            if action in job.actions:
                return job.actions[action]
        raise Problem(404, f"there is no action '{action[:100]}'")

    async def _on_node(self, word: builders.NodeWord, request: Request, asked: CordonAsked) -> Response:
        node, by, at_s = _node(request), _by(request), self._clock.now_s()
        with self._overview.lock:
            job = asked.job or self._overview.last_job_on(node)
        if job is None:
            raise Problem(422, f"nothing was heard of node {node[:100]}: name a job that its launcher runs")
        return await self._say(builders.on_node(word, node, job, by, at_s=at_s, why=asked.why))

    async def _say(self, command: CommandRecord) -> Response:
        await self.publish(command)
        return answer({"command": command_object(command)}, 202)


def _refusal(action: ActionRecord) -> Problem:
    """Why no word on `action` would be heard."""
    if waits(action):
        detail = "another plan stands by now; look at it, and name its plan_digest"
        return Problem(409, detail, plan_digest=action.plan_digest)
    if action.outcome == "proposed":
        return Problem(
            409, "the engine only observes: it shows what it would do and waits for nobody", outcome="proposed"
        )
    detail = f"the action waits for no word, it is {action.outcome}: {action.why[:300]}"
    return Problem(409, detail, outcome=action.outcome)


def _node(request: Request) -> str:
    """The node that `request` names.

    Raises
    ------
    Problem
        422 if nobody could read the name.
    """
    node = str(request.path_params["id"])
    if not node.strip() or not node.isprintable() or len(node) > 512:
        raise Problem(422, "that is no name of a node")
    return node


def _by(request: Request) -> str:
    return str(request.state.person.name)


def command_object(command: CommandRecord) -> dict[str, Any]:
    """A word as the API tells it."""
    return {
        "id": command.id,
        "kind": command.kind,
        "job": None if command.job == EVERY_JOB else command.job,
        "action": command.action,
        "node": command.node,
        "plan_digest": command.plan_digest,
        "by": command.by,
        "at_s": command.at_s,
    }
