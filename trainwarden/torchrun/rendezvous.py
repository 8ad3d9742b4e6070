"""torchrun's rendezvous by our service: torch calls `Handler` for a place, and ten times a second whether to leave it.

The ranks' store lies in the first node's torchrun, a new one for each round, so that nothing of an earlier round is in
the way. Whatever becomes of the service, ranks that run go on.
"""

from __future__ import annotations

import copy
import gc
import logging
import os
import signal
import ssl
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from torch.distributed import PrefixStore, TCPStore
from torch.distributed.elastic.rendezvous.api import (
    RendezvousConnectionError,
    RendezvousHandler,
    RendezvousInfo,
    RendezvousParameters,
    RendezvousStoreInfo,
)

from trainwarden import rundir
from trainwarden.torchrun.agent import Agent, Begin, Over, Place, Unreachable
from trainwarden.torchrun.exits import MOST_FAILURES, Exits, Renewals
from trainwarden.torchrun.line import Endpoints
from trainwarden.torchrun.memory import NotFilled, Overtaken
from trainwarden.torchrun.node_check import NodeCheck
from trainwarden.torchrun.saving import SIGNAL, Saving
from trainwarden.torchrun.surroundings import Surroundings, job_of, node_of
from trainwarden.torchrun.watching import NodeAgent

log = logging.getLogger("trainwarden.torchrun")

PORT: Final = 29_402
JOIN_S: Final = 600.0  # as torch's own join_timeout
STORE_S: Final = 10.0  # for one try to reach the first node's store
STUBBORN_S: Final = 10.0  # a rank that ignores SIGTERM is killed after so long; torchrun alone takes 30
LOOK_S: Final = 1.0


class Handler(RendezvousHandler):  # type: ignore[misc] # torch is not always there
    """One torchrun's part in the rendezvous.

    Parameters
    ----------
    parameters : RendezvousParameters
        ``--rdzv-conf`` may name ``token_file``, ``tls_ca``, ``tls_certificate``, ``tls_key``, ``node_rank``,
        ``spares``, ``max_failures``, ``renew``, ``grow``, ``weight``, ``held``, and torch's own ``join_timeout`` and
        ``last_call_timeout`` in seconds.
    """

    def __init__(self, parameters: RendezvousParameters) -> None:
        if _forks():
            _import_for_ranks()
            _count_silent_ends()
        self._backend, self._run_id = str(parameters.backend), str(parameters.run_id)
        job, node = job_of(self._run_id), node_of(os.environ)
        self._patience_s = float(parameters.get("join_timeout", JOIN_S))
        place = Place(
            job, node, parameters.min_nodes, parameters.max_nodes, parameters.local_addr,
            float(parameters.get("last_call_timeout", 30.0)), _number(parameters, "node_rank"),
            _number(parameters, "spares"), _number(parameters, "max_failures"), _grow(parameters),
            _weight(parameters), _yes(parameters, "held"),
        )  # fmt: skip
        os.environ["TORCH_ELASTIC_WORKER_IDENTICAL"] = "1"  # else a node lost meanwhile would end all others
        self._around = Surroundings(
            job, node, os.environ, lambda found: self._agent.update(checkpoint=found),
            alone=parameters.max_nodes == 1, keeper=lambda found: self._agent.update(keeper=found),
        )  # fmt: skip
        self._watching = NodeAgent(job, node, self._around.run_dir, os.environ)
        self._agent = Agent(place, _endpoints(parameters), self._put_splits, self._watch, self._around.note)
        self._agent.tell_keeper = self._around.tell_keeper
        renewals = Renewals(self._around.run_dir / rundir.HOOK, _most_renewed(parameters))
        self._exits = Exits(lambda number, said: self._agent.update_round(number, **said), self._around.ended, renewals)
        _tell_of_starts(self._exits)
        _renew_ranks(self._exits)
        self._saving = Saving(os.environ.get(SIGNAL, ""), self._exits.running)
        self._agent.save = self._save
        self._check = self._checks_of(node)
        self._store: Any = None
        self._over = threading.Event()
        self._pid = os.getpid()
        os.register_at_fork(after_in_child=self._forked)
        self._agent.update(looks=self._around.looks)
        self._agent.start()
        self._around.start()
        self._check.start()
        for work, name in ((self._end_stubborn, "stop"), (self._look_for_first_steps, "steps")):
            threading.Thread(target=work, name=f"trainwarden-{name}", daemon=True).start()

    def _checks_of(self, node: str) -> NodeCheck:
        made = NodeCheck(
            self._around.run_dir, node, dict(os.environ), running=self._exits.running, update=self._agent.update,
            heard_s=lambda: self._agent.answered_s,
        )  # fmt: skip
        self._agent.check = made.want
        return made

    def get_backend(self) -> str:
        return self._backend

    @property
    def use_agent_store(self) -> bool:
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        """Wait for a round with a place for us; a torchrun that is not wanted any more ends here."""
        self._exits.end(requested=False)
        self._around.look_again()
        while True:
            begin, store = self._placed()
            self._store = store  # the ranks' too, where it is ours
            self._exits.listen()
            self._exits.begin(begin.round)
            where = f"{begin.round} at {begin.host}:{begin.port}"
            try:
                resume, step = self._around.fill(where, begin.round, begin.resume, lambda: self._agent.has_to_stop)
                break
            except NotFilled as error:
                raise RendezvousConnectionError(str(error)) from error
            except Overtaken:
                continue
        self._agent.update(restored=step)
        self._around.prepare(begin.round - 1, resume)
        why = self._agent.reason if begin.round > 1 else ""
        self._around.placed(begin.round - 1, begin.rank, begin.world, why)
        if begin.round > 1:
            self._around.started(begin.round - 1, why)
        prefixed = PrefixStore(f"trainwarden/{begin.round}/", store)
        return RendezvousInfo(prefixed, begin.rank, begin.world, RendezvousStoreInfo(begin.host, begin.port))

    def _placed(self) -> tuple[Begin, Any]:
        """Our place in the next round, and the store of its ranks."""
        while True:
            own = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
            try:
                begin = self._agent.wait_for_round(own.port, self._patience_s)
            except Over as over:
                if over.code:
                    log.warning("trainwarden: the job is over: %s", over)
                sys.exit(over.code)
            except Unreachable as error:
                raise RendezvousConnectionError(str(error)) from error
            store = own if begin.rank == 0 else self._store_of(begin)
            if store is not None:
                return begin, store

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        """The service says when a job is over."""

    def num_nodes_waiting(self) -> int:
        """Whether our ranks are to end for another round; the answer is known, nobody is asked."""
        if stop := self._agent.has_to_stop:
            self._exits.end(requested=True)
        return int(stop)

    def get_run_id(self) -> str:
        return self._run_id

    def shutdown(self) -> bool:
        """This torchrun ends."""
        self._over.set()
        self._check.close()
        self._agent.close()
        self._watching.close()
        self._around.close()
        return True

    def _save(self) -> None:
        self._around.keep_soon()
        self._saving.ask()

    def _put_splits(self, splits: list[dict[str, Any]]) -> None:
        self._around.put_splits(splits, lambda number: self._agent.update(split=number))

    def _watch(self, bus: str) -> None:
        if self._around.own:  # else somebody watches that folder
            self._watching.watch(bus)

    def _store_of(self, begin: Begin) -> Any:
        """The first node's store; None if another round is wanted before it can be reached."""
        until_s = time.monotonic() + self._patience_s
        while not self._agent.has_to_stop:
            try:
                return TCPStore(begin.host, begin.port, is_master=False, timeout=timedelta(seconds=STORE_S))
            except RuntimeError as error:
                if time.monotonic() > until_s:
                    where = f"{begin.host}:{begin.port}"
                    raise RendezvousConnectionError(f"the first node's store at {where}: {error}") from error
        return None

    def _end_stubborn(self) -> None:
        """Wake ranks that stand still, as only then SIGTERM ends them, and kill those that do not end by it."""
        while not self._over.wait(LOOK_S):
            asked_s = self._agent.stop_requested_s
            if asked_s is not None:
                late = time.monotonic() - asked_s > STUBBORN_S
                for pid in self._exits.running():
                    with suppress(OSError):
                        os.kill(pid, signal.SIGKILL if late else signal.SIGCONT)

    def _look_for_first_steps(self) -> None:
        """See when all ranks of this node have finished a step, and whether one has started over."""
        seen, since_s = 0, time.monotonic()
        saves = False
        while not self._over.wait(LOOK_S):
            if saves != (saves := self._saving.possible()):
                self._agent.update(saves=saves)
            found = self._exits.all_started()
            if found is None or found[0] == seen:
                since_s = time.monotonic() if found is None else since_s
                continue
            steps = self._around.first_steps(found[1])
            if steps is not None:
                seen, known = found[0], [step for step in steps if step is not None]
                first = min(known) if len(known) == len(steps) else None
                self._agent.update_round(seen, first_step=first, start_s=time.monotonic() - since_s)

    def _forked(self) -> None:
        """In a child that Python has forked: it must not answer signals as torchrun does, nor hold our connection.

        What a rank forks runs this as well, and keeps the handlers that the script has set.
        """
        if os.getppid() != self._pid:
            return
        self._agent.forget()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            if callable(signal.getsignal(number)):
                signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)


def _forks() -> bool:
    """Whether ranks are forked from this process (torch/distributed/run.py, ``--start-method``)."""
    said = " ".join(sys.argv[1:]).replace("=", " ")
    return os.environ.get("PET_START_METHOD") == "fork" or "--start-method fork" in said.replace("_", "-")


def _import_for_ranks() -> None:
    """Import once what the first optimizer of each rank imports: a second of a core, at each start.

    No rank looks through it for garbage: each would copy all its pages for the collector's marks.
    """
    try:
        import torch._dynamo  # noqa: F401
    except Exception:
        log.debug("torch._dynamo is not imported here", exc_info=True)
    gc.collect()
    gc.freeze()


def _count_silent_ends() -> None:
    """Have torchrun take a forked rank that ends with code 0 by itself (``os._exit``, exec) for one that is done.

    torch (torch/distributed/elastic/multiprocessing/api.py) waits for a value of each, and such a rank sends none.
    """
    try:
        from torch.distributed.elastic.multiprocessing.api import MultiprocessContext

        known = MultiprocessContext._is_done
    except (ImportError, AttributeError):
        log.debug("torch's own way to see that ranks are done is not known", exc_info=True)
        return

    def is_done(self: Any) -> bool:
        with suppress(AttributeError, TypeError):
            for rank, process in enumerate(self._pc.processes):
                if process.exitcode == 0:
                    self._return_values.setdefault(rank, None)
        return bool(known(self))

    MultiprocessContext._is_done = is_done


def _tell_of_starts(exits: Exits) -> None:
    """Have torchrun tell of the ranks that it has started where its events do not: torch 2.6 has none of a start."""
    try:
        from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

        start = LocalElasticAgent._start_workers
    except (ImportError, AttributeError):
        log.debug("torch's own way to start ranks is not known", exc_info=True)
        return

    def started(self: Any, group: Any) -> Any:
        pids = start(self, group)
        with suppress(AttributeError, IndexError, KeyError, TypeError):
            for number, pid in pids.items():
                exits.started(pid, group.workers[number].global_rank, len(pids))
        return pids

    LocalElasticAgent._start_workers = started


def _renew_ranks(exits: Exits) -> None:
    """Have torchrun start a rank again whose job goes on without it, before it looks and ends all others.

    A death within the moment between this look and torchrun's own is a restart of all. Each counts among torchrun's own
    restarts (``--max-restarts``).
    """
    try:
        from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
        from torch.distributed.elastic.multiprocessing.api import SignalException

        look = LocalElasticAgent._monitor_workers
    except (ImportError, AttributeError):
        log.debug("torch's own way to look at ranks is not known", exc_info=True)
        return

    def looked(self: Any, group: Any) -> Any:
        try:
            for place, worker in enumerate(group.workers):
                if self._remaining_restarts > 0 and (made := _renewed(self._pcontext, place, exits)) is not None:
                    old, worker.id = worker.id, made  # torch takes its ranks for lost where these differ from theirs
                    self._remaining_restarts -= 1
                    exits.renewed(old, made)
                    log.warning("trainwarden: rank %d has died and is started again", worker.global_rank)
        except SignalException:  # torchrun was asked to end
            raise
        except Exception:
            log.warning("trainwarden: a rank that died could not be started again alone", exc_info=True)
        return look(self, group)

    LocalElasticAgent._monitor_workers = looked


def _renewed(context: Any, place: int, exits: Exits) -> int | None:
    """The pid of the process that takes the place of a rank, its number on this node `place`; None if it needs none."""
    forked = not hasattr(context, "subprocess_handlers")
    pid = context._pc.processes[place].pid if forked else context.subprocess_handlers[place].proc.pid
    # torch binds to the cores of a device by the rank's number, or before it starts a process.
    if getattr(context, "_numa_options", None) is not None or (forked and not _can_fork_again(context, place)):
        return None
    if not _has_failed(pid) or not exits.is_to_renew(pid):
        return None
    try:
        with suppress(OSError):
            Path(context.error_files[place]).unlink()  # else the next death were told with the words of this one
        return (_forked_again if forked else _started_again)(context, place)
    except BaseException:
        exits.given_up(pid)
        raise


def _started_again(context: Any, place: int) -> int:
    """Start a process with the same words, and the same open files for what it writes."""
    handler = context.subprocess_handlers[place]
    handler.proc.wait()
    handler.proc = handler._popen(handler.proc.args, {**os.environ, **context.envs[place]})
    return int(handler.proc.pid)


def _can_fork_again(context: Any, place: int) -> bool:
    """Whether nothing is lost by it: torch would open a file for the rank's output anew, and empty it.

    A rank that has come to its end waits for the others; with a dead one among those, torch would wait for ever.
    """
    done = place in context._return_values or not context._ret_vals[place].empty()
    return context.start_method == "fork" and not done and not (context.stdouts[place] or context.stderrs[place])


def _forked_again(context: Any, place: int) -> int:
    all_of = context._pc
    old, sentinels, error_files = all_of.processes[place], all_of.sentinels, all_of.error_files
    old.join()
    alone = copy.copy(context)
    alone._pc, alone.nprocs, alone._ret_vals = None, 1, {0: context._ret_vals[place]}
    for name in ("args", "envs", "stdouts", "stderrs"):
        setattr(alone, name, {0: getattr(context, name)[place]})
    alone._start()
    [made] = alone._pc.processes
    sentinels.pop(old.sentinel, None)
    sentinels[made.sentinel] = place
    all_of.processes[place], error_files[place] = made, alone._pc.error_files[0]
    return int(made.pid)


def _has_failed(pid: int) -> bool:
    """Whether a child has ended by a signal or with a code; it stays to be reaped."""
    try:
        found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return found is not None and found.si_status != 0


def _endpoints(parameters: RendezvousParameters) -> Endpoints:
    """Where the service is; of several the first that answers.

    Raises
    ------
    ValueError
        With one sentence on what is wrong.
    """
    said = parameters.endpoint or (f"127.0.0.1:{PORT}" if parameters.max_nodes == 1 else "")
    found = [_address(one.strip()) for one in said.split(",") if one.strip()]
    if not found:
        raise ValueError("--rdzv-endpoint (PET_RDZV_ENDPOINT) has to name the service: HOST:PORT[,HOST:PORT]")
    file = parameters.get("token_file") or os.environ.get("TRAINWARDEN_TOKEN_FILE")
    try:
        token = Path(file).read_text(encoding="ascii").strip() if file else ""
        tls = _tls(parameters)
    except (OSError, UnicodeError) as error:
        raise ValueError(f"--rdzv-conf: a file of token_file or tls cannot be used ({error})") from error
    return Endpoints(tuple(found), token, tls)


def _number(parameters: RendezvousParameters, name: str) -> int | None:
    said = parameters.get(name)
    if said is None:
        return None
    if not str(said).isdigit():
        raise ValueError(f"--rdzv-conf: {name} has to be a whole number, not '{str(said)[:80]}'")
    return int(said)


def _grow(parameters: RendezvousParameters) -> str | None:
    said = parameters.get("grow")
    if said not in (None, "worth", "now", "restart"):
        raise ValueError(f"--rdzv-conf: grow is one of worth, now, restart, not '{str(said)[:80]}'")
    return None if said is None else str(said)


def _yes(parameters: RendezvousParameters, name: str) -> bool | None:
    said = parameters.get(name)
    if said not in (None, "yes", "no"):
        raise ValueError(f"--rdzv-conf: {name} is yes or no, not '{str(said)[:80]}'")
    return None if said is None else said == "yes"


def _most_renewed(parameters: RendezvousParameters) -> int:
    """How many ranks may start again alone within an hour: as often as all would."""
    return 0 if _yes(parameters, "renew") is False else (_number(parameters, "max_failures") or MOST_FAILURES) - 1


def _weight(parameters: RendezvousParameters) -> float | None:
    said = parameters.get("weight")
    try:
        return None if said is None else float(said)
    except ValueError as error:
        raise ValueError(f"--rdzv-conf: weight has to be a number, not '{str(said)[:80]}'") from error


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or "]" in port:
        host, port = text, str(PORT)
    if not port.isdigit() or not 0 < int(port) < 65_536 or not host.strip("[]"):
        raise ValueError(f"--rdzv-endpoint: '{text[:200]}' is not HOST:PORT")
    return host.strip("[]"), int(port)


def _tls(parameters: RendezvousParameters) -> ssl.SSLContext | None:
    ca, certificate, key = (parameters.get(f"tls_{name}") for name in ("ca", "certificate", "key"))
    if not ca and not certificate and not key:
        return None
    if not (ca and certificate and key):
        raise ValueError("--rdzv-conf: tls_ca, tls_certificate and tls_key need each other")
    context = ssl.create_default_context(cafile=ca)
    context.load_cert_chain(certificate, key, password="")
    return context
