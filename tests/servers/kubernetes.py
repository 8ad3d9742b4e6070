"""A real Kubernetes API server with its etcd on this machine: a cluster without nodes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

from tests.servers.go_tools import CACHE, run_go
from tests.servers.kafka import ServerMissing
from tests.servers.ports import free_ports

KUBERNETES: Final = "v1.34.2"
MODULES: Final = "v0.34.2"
JOBSET: Final = "sigs.k8s.io/jobset@v0.11.1"
TRAINING_OPERATOR: Final = "github.com/kubeflow/training-operator@v1.9.3"
CRDS: Final = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
READY_TIMEOUT_S: Final = 60.0
_SOURCE: Final = Path(__file__).with_name("kube_apiserver") / "main.go"
_TOKEN: Final = "a-token-of-the-tests"
_ENGINE_TOKEN: Final = "a-token-of-an-engine"  # of a user that has the rights which are given to it


def api_server() -> Path:
    """The server's program, from the published Go modules; ten minutes of a processor the first time.

    Raises
    ------
    ServerMissing
        With the reason. Unless ``TRAINWARDEN_KUBERNETES=1``, that it has not been built yet is one.
    """
    folder = CACHE / f"kube-apiserver-{KUBERNETES}"
    program = folder / "kube-apiserver"
    if program.exists():
        return program
    if os.environ.get("TRAINWARDEN_KUBERNETES") != "1":
        raise ServerMissing("a Kubernetes API server takes minutes to build: make kubernetes")
    if shutil.which("go") is None:
        raise ServerMissing("the Kubernetes API server is built by Go, and there is no go on the PATH")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock-kube-apiserver").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            folder.mkdir(exist_ok=True)
            shutil.copyfile(_SOURCE, folder / "main.go")
            (folder / "go.mod").write_text(_go_mod(), encoding="utf-8")
            run_go(["build", "-mod=mod", "-trimpath", "-ldflags=-s -w", "-o", "kube-apiserver.part", "."], folder)
            (folder / "kube-apiserver.part").rename(program)
    return program


def monitoring_crds() -> list[Path]:
    """The Prometheus Operator's definitions of what the chart may make."""
    folder = _downloaded(CRDS, "Dir") / "example" / "prometheus-operator-crd"
    return [folder / f"monitoring.coreos.com_{name}.yaml" for name in ("servicemonitors", "prometheusrules")]


def job_crds() -> list[Path]:
    """The definitions of JobSet and PyTorchJob."""
    bases = _downloaded(JOBSET, "Dir") / "config" / "components" / "crd" / "bases"
    operator = _downloaded(TRAINING_OPERATOR, "Dir") / "manifests" / "base" / "crds"
    return [bases / "jobset.x-k8s.io_jobsets.yaml", operator / "kubeflow.org_pytorchjobs.yaml"]


def _go_mod() -> str:
    """A module of the server alone; its own go.mod points at folders beside it, which are published as modules."""
    own = _downloaded(f"k8s.io/kubernetes@{KUBERNETES}", "GoMod").read_text(encoding="utf-8")
    beside = re.findall(r"^\s*(k8s\.io/[a-z-]+) => \./staging", own, re.MULTILINE)
    lines = ["module apiserver", "go 1.24.0", f"require k8s.io/kubernetes {KUBERNETES}"]
    return "\n".join([*lines, *(f"replace {name} => {name} {MODULES}" for name in beside), ""])


def _downloaded(module: str, what: str) -> Path:
    command = ["go", "mod", "download", "-json", module]
    try:
        done = subprocess.run(command, cwd=CACHE, capture_output=True, text=True, timeout=300, check=False)
        return Path(json.loads(done.stdout)[what])
    except (OSError, ValueError, KeyError, subprocess.TimeoutExpired) as error:
        raise ServerMissing(f"{module} cannot be downloaded by Go") from error


class Kubernetes:
    """One API server with RBAC; `kubectl` speaks to it as an administrator.

    Raises
    ------
    ServerMissing
        If a program is missing.
    """

    def __init__(self, folder: Path) -> None:
        for name in ("etcd", "kubectl", "openssl"):
            if shutil.which(name) is None:
                raise ServerMissing(f"{name} is not installed")
        self._program = api_server()
        self._folder = folder
        folder.mkdir(parents=True)
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        """Start both, and wait until the API is ready."""
        folder, (client, peer, port) = self._folder, free_ports(3)
        self._run(
            "etcd", "--data-dir", str(folder / "etcd"), "--unsafe-no-fsync",
            "--listen-client-urls", f"http://127.0.0.1:{client}", "--advertise-client-urls", f"http://127.0.0.1:{client}",
            "--listen-peer-urls", f"http://127.0.0.1:{peer}", "--initial-advertise-peer-urls", f"http://127.0.0.1:{peer}",
            "--initial-cluster", f"default=http://127.0.0.1:{peer}",
        )  # fmt: skip
        key = str(folder / "key.pem")
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], capture_output=True, timeout=60, check=True)
        tokens = f'{_TOKEN},admin,1,"system:masters"\n{_ENGINE_TOKEN},engine,2\n'
        (folder / "tokens.csv").write_text(tokens, encoding="utf-8")
        self.url, self.token = f"https://127.0.0.1:{port}", _TOKEN
        self._run(
            str(self._program), f"--etcd-servers=http://127.0.0.1:{client}", f"--cert-dir={folder / 'certs'}",
            "--bind-address=127.0.0.1", f"--secure-port={port}", f"--token-auth-file={folder / 'tokens.csv'}",
            "--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount",
            "--service-cluster-ip-range=10.96.0.0/24", "--service-account-issuer=https://tests",
            f"--service-account-key-file={key}", f"--service-account-signing-key-file={key}",
        )  # fmt: skip
        self._words = [
            "kubectl", f"--server=https://127.0.0.1:{port}", "--insecure-skip-tls-verify", f"--token={_TOKEN}",
            f"--cache-dir={folder / 'cache'}",
        ]  # fmt: skip
        end_s = time.monotonic() + READY_TIMEOUT_S
        while self.kubectl("get", "--raw=/readyz").returncode:
            assert all(process.poll() is None for process in self._processes), self.tail()
            assert time.monotonic() < end_s, self.tail()
            time.sleep(0.3)

    def kubectl(self, *words: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """One command, whatever becomes of it."""
        environ = {**os.environ, "KUBECONFIG": "/dev/null"}
        return subprocess.run(
            [*self._words, *words], input=stdin, env=environ, capture_output=True, text=True, timeout=60, check=False
        )

    def apply(self, paths: list[Path]) -> None:
        """Definitions of resources, once they are known."""
        for path in paths:
            done = self.kubectl("apply", "--server-side", "--filename", str(path))
            assert done.returncode == 0, done.stderr
        done = self.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=30s")
        assert done.returncode == 0, done.stderr

    def kubeconfig(self, path: Path, token: str = _ENGINE_TOKEN) -> Path:
        """A file by which a client finds its way: as the user `engine`, or by another token."""
        authority = self._folder / "certs" / "apiserver.crt"
        text = f"""apiVersion: v1
kind: Config
current-context: tests
contexts: [{{name: tests, context: {{cluster: tests, user: tests}}}}]
clusters: [{{name: tests, cluster: {{server: "{self.url}", certificate-authority: "{authority}"}}}}]
users: [{{name: tests, user: {{token: "{token}"}}}}]
"""
        path.write_text(text, encoding="utf-8")
        return path

    def signal_server(self, number: int) -> None:
        """Send the API server a signal: SIGSTOP makes it silent."""
        self._processes[1].send_signal(number)

    def stop(self) -> None:
        """End both."""
        for process in reversed(self._processes):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(20)

    def tail(self) -> str:
        """The last lines of both logs."""
        return "\n".join(log.read_text(errors="replace")[-2000:] for log in sorted(self._folder.glob("*.log")))

    def _run(self, *command: str) -> None:
        with (self._folder / f"{Path(command[0]).name}.log").open("wb") as log:
            self._processes.append(subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True))
