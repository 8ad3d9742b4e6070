"""A Slurm in memory that is spoken to by command lines, as `run_program` would; one job, four nodes."""

from __future__ import annotations

import json
import subprocess
from datetime import datetime
from typing import Any

CONFIG = "SlurmUser               = {owner}\nAccountingStorageType   = accounting_storage/{storage}\n"


class SlurmDouble:
    """Answers as 22.05 does, in text; with `speaks_json` as 24.11.

    `away` and `slow` make it silent, `refusing` is what it says to every change, `said` are the changes asked for.
    """

    def __init__(self, state: str = "RUNNING") -> None:
        self.state, self.why, self.restarts, self.requeue = state, "None", 0, 1
        self.on, self.excluded, self.comment = ["n1", "n2"], "", "theirs"
        self.nodes = {f"n{number}": ("IDLE", "") for number in (1, 2, 3, 4)}
        self.jobs = [(7, state)]
        self.speaks_json = self.away = self.slow = self.broken = False
        self.refusing = self.level = ""
        self.storage, self.owner = "none", "slurm(64030)"
        self.said: list[str] = []
        self.reservations: dict[str, str] = {}  # by name: its nodes
        self.others: list[tuple[int, str]] = []  # jobs of other names
        self.beside = ""  # what squeue says of the nodes
        self.config = ""  # more lines of it
        self.submitted_s: int | None = None
        self.probe = ""  # what a step in the job says on all nodes
        self.calls = 0

    def run(self, argv: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        self.calls += 1
        program, words = argv[0].rpartition("/")[2], argv[1:]
        if self.slow:
            raise subprocess.TimeoutExpired(argv, 1.0)
        if self.away:
            return done(argv, "", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n")
        if self.broken:
            return done(argv, "what?")
        if program == "squeue" and any(word.startswith("--nodelist") for word in words):
            return done(argv, self.beside)
        if program == "squeue" and any(word.startswith("--name=trainwarden-") for word in words):
            return done(argv, "".join(f"{number} {state}\n" for number, state in self.others))
        if program == "squeue":
            return done(argv, "".join(f"{number} {state}\n" for number, state in self.jobs))
        if program == "srun":
            return done(argv, self.probe)
        if program == "sacctmgr":
            return done(argv, self.level)
        if program == "scontrol" and "show" in words:
            return self._show(argv, words)
        if self.refusing:
            return done(argv, "", f"slurm_update error: {self.refusing}\n")
        return self._change(argv, program, words)

    def _show(self, argv: list[str], words: list[str]) -> subprocess.CompletedProcess[str]:
        if words[0] == "--json" and not self.speaks_json:
            return done(argv, "", "scontrol: unrecognized option '--json'\nTry \"scontrol --help\" for more\n")
        what, names = words[-2:] if words[-1] != "config" else ("config", "")
        if what == "config":
            return done(argv, CONFIG.format(storage=self.storage, owner=self.owner) + self.config)
        if what == "reservation":
            found = f"ReservationName={names} Nodes={self.reservations.get(names)}"
            return (
                done(argv, found) if names in self.reservations else done(argv, "", f"Reservation {names} not found\n")
            )
        if what == "hostnames":
            return done(argv, "\n".join(names.split(",")))
        if what == "job" and names != "7":
            if words[0] == "--json":
                return done(argv, '{"jobs": [], "errors": [{"error": "?"}]\n}', code=1)
            return done(argv, "", "slurm_load_jobs error: Invalid job id specified\n")
        if what == "job":
            return done(argv, self._job(words[0] == "--json"))
        if missing := [name for name in names.split(",") if name not in self.nodes]:
            return done(argv, f"Node {missing[0]} not found\n", code=1)
        return done(argv, self._nodes(names.split(","), words[0] == "--json"))

    def _job(self, as_json: bool) -> str:
        on = ",".join(self.on) if self.state in ("RUNNING", "FAILED", "COMPLETING") else ""
        if as_json:
            job = {
                "job_id": 7, "job_state": [self.state], "state_description": self.why.replace("_", " "),
                "restart_cnt": self.restarts,
                "requeue": bool(self.requeue), "batch_flag": True, "nodes": on, "excluded_nodes": self.excluded,
                "comment": self.comment,
            } | ({} if self.submitted_s is None else {"submit_time": self.submitted_s})  # fmt: skip
            return json.dumps({"jobs": [job]})
        submitted = "Unknown" if self.submitted_s is None else datetime.fromtimestamp(self.submitted_s).isoformat()
        return (
            f"JobId=7 JobName=job\n   JobState={self.state} Reason={self.why} Dependency=(null)\n"
            f"   Requeue={self.requeue} Restarts={self.restarts} BatchFlag=1\n"
            f"   SubmitTime={submitted}\n"
            f"   ReqNodeList=(null) ExcNodeList={self.excluded or '(null)'}\n   NodeList={on or '(null)'}\n"
            f"   Comment={self.comment} \n"
        )

    def _nodes(self, names: list[str], as_json: bool) -> str:
        if as_json:
            nodes = [{"name": n, "state": self.nodes[n][0].split("+"), "reason": self.nodes[n][1]} for n in names]
            return json.dumps({"nodes": nodes})
        return "\n".join(
            f"NodeName={n} Arch=x\n   State={self.nodes[n][0]} Weight=1\n   Reason={self.nodes[n][1]} [root@now]\n"
            for n in names
        )

    def _change(self, argv: list[str], program: str, words: list[str]) -> subprocess.CompletedProcess[str]:
        fields = dict(word.split("=", 1) for word in words if "=" in word)
        if program == "sbatch":
            self.others = [(8, "RUNNING")]
        if words[0] in ("create", "delete"):
            if words[0] == "create":
                self.reservations[fields["ReservationName"]] = fields["Nodes"]
            elif self.reservations.pop(fields["ReservationName"], None) is None:
                return done(argv, "", "Requested reservation is invalid\n")
        if program == "scancel" and words[0].startswith("--quiet"):
            self.others = [(8, "CANCELLED")]
        aside = program == "sbatch" or words[0] in ("create", "delete", "--quiet")
        if aside or (program == "scancel" and words[0].startswith("--signal")):
            self.said.append(" ".join([program, *words]))
            return done(argv, "")
        if "Comment" not in fields:
            self.said.append(" ".join([program, *words]))
        if "Comment" in fields:
            if self.state in ("FAILED", "COMPLETED", "CANCELLED"):
                return done(argv, "", "Job has already finished for job 7\n")
            self.comment = fields["Comment"]
        elif "ExcNodeList" in fields:
            self.excluded = fields["ExcNodeList"]
        elif "NodeName" in fields:
            resumed = fields["State"] == "RESUME"
            self.nodes[fields["NodeName"]] = ("IDLE", "") if resumed else ("IDLE+DRAIN", fields["Reason"])
        elif words[0] in ("requeue", "requeuehold"):
            if self.state not in ("RUNNING", "FAILED"):
                return done(argv, "", "Job is pending execution for job 7\n")
            self.state, self.restarts = "PENDING", self.restarts + 1
            self.why = "job_requeued_in_held_state" if words[0] == "requeuehold" else "BeginTime"
        elif words[0] == "release":
            self.why = "BeginTime"
        elif program == "scancel":
            self.state = "CANCELLED"
        self.jobs = [(7, self.state)]
        return done(argv, "")

    def start(self) -> None:
        """Slurm starts the job where it may."""
        wanted = [n for n, (state, _) in self.nodes.items() if state == "IDLE" and n not in self.excluded.split(",")]
        self.on, self.state, self.why = wanted[:2], "RUNNING", "None"
        self.jobs = [(7, self.state)]


def done(argv: list[str], out: str, error: str = "", code: int | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.CompletedProcess(argv, code if code is not None else int(bool(error)), out, error)
