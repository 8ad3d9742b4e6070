"""The process of the local launcher: one thread, one selector over process ends, the control socket and deadlines."""

from __future__ import annotations

import os
import selectors
from collections.abc import Callable, Mapping, Sequence

import msgspec

from trainwarden import rundir
from trainwarden.actions.launchers.local import ranks as rank_processes
from trainwarden.actions.launchers.local.control import ControlServer
from trainwarden.actions.launchers.local.coordinator import Coordinator, SupervisorConfig
from trainwarden.actions.launchers.local.node_runner import NodeRunner
from trainwarden.actions.launchers.local.ranks import LocalJob
from trainwarden.actions.launchers.restart_check.messages import Suspicions
from trainwarden.clock import Clock
from trainwarden.errors import ConfigError

LONGEST_WAIT_S = 0.1
SETTLING_WAIT_S = 0.005  # the last words of a rank that has ended take about a millisecond


class Supervisor:
    """Runs the command of `place` as its ranks until the job is over; `run` returns the job's exit code.

    Parameters
    ----------
    place : Place
        Command, number of ranks, run folder (`trainwarden.rundir.create`), job and node. A command ``python`` means
        the interpreter that runs us.
    environ : mapping, optional
        Environment to build the ranks' on; default this process's.
    adopt : bool
        This process has no other children than the ranks: what they leave behind ends with them.
    suspicions : Suspicions, optional
        Who is to be measured before all ranks start again; nobody, if there are none.

    Raises
    ------
    ConfigError
        If the command is empty, there is less than one rank, or the run folder cannot be made.
    """

    def __init__(
        self,
        place: LocalJob,
        clock: Clock,
        environ: Mapping[str, str] | None = None,
        config: SupervisorConfig | None = None,
        *,
        adopt: bool = False,
        suspicions: Suspicions | None = None,
    ) -> None:
        if not place.command or place.ranks < 1:
            words = list(place.command)
            raise ConfigError(f"a launch needs a command and at least one process, not {place.ranks} of {words}")
        config = config or SupervisorConfig()
        self._place = msgspec.structs.replace(place, command=rank_processes.check_command(place.command))
        rundir.prepare(place.run_dir)
        self._selector = selectors.DefaultSelector()
        environ = dict(os.environ if environ is None else environ)
        self._runner = NodeRunner(
            self._place, environ, self._selector, clock,
            stop_grace_s=config.stop_grace_s, port_tries=config.port_tries, adopt=adopt,
        )  # fmt: skip
        self._coordinator = Coordinator(self._place, self._runner, clock, config, suspicions)

    def run(self, stop: Callable[[], bool] = lambda: False, passed_on: Callable[[], Sequence[int]] = tuple) -> int:
        """Start the ranks and look after them until the job is over or `stop()` is true.

        Parameters
        ----------
        stop : callable
            Whether the job is to end.
        passed_on : callable
            Numbers of signals that have come since the last call and go to the ranks.

        Returns
        -------
        int
            0 if every rank ended well, else the first failed rank's exit code as a shell shows it;
            143 if the job was stopped without a failure.

        Raises
        ------
        ConfigError
            If another launcher runs in the run folder.
        """
        coordinator, runner = self._coordinator, self._runner
        server = ControlServer(self._place.run_dir / rundir.LAUNCHER_SOCKET, self._selector, coordinator.handle)
        try:
            if stop():
                coordinator.end()
            else:
                passed_on()  # what came before there was a rank was for none of them
                coordinator.begin()
            while not coordinator.over:
                for key, _ in self._selector.select(SETTLING_WAIT_S if runner.settling else LONGEST_WAIT_S):
                    key.data()
                if stop():
                    coordinator.end()
                runner.pass_on(passed_on())
                runner.advance()
                coordinator.advance()
        finally:
            runner.kill_all()
            coordinator.close()
            server.close()
            self._selector.close()
        return coordinator.exit_code
