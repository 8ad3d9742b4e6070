"""A real Apache Kafka broker: KRaft, one node, from jars that Maven resolves once into ``.cache/kafka``.

``python -m tests.servers.kafka --port 9092`` (``make kafka``) runs the same broker for a person.
"""

from __future__ import annotations

import argparse
import atexit
import base64
import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

from tests.places import ROOT

POM = ROOT / "docker" / "kafka" / "pom.xml"
PROPERTIES = ROOT / "docker" / "kafka" / "server.properties"
CACHE = ROOT / ".cache" / "kafka"
RESOLVE_TIMEOUT_S = 300.0
READY_TIMEOUT_S = 60.0
BRIEF = ("-XX:TieredStopAtLevel=1",)  # in a broker's first minutes the second compiler costs more than it gives
GUARDED = (
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found=true",
)  # access lists can be set
_HEAP = ("-Xms128m", "-Xmx512m", "-XX:+UseSerialGC")  # 370 MB in all; two cores gain nothing from a parallel collector
_PR_SET_PDEATHSIG = 1


class ServerMissing(Exception):
    """The server cannot run on this machine; the message is one sentence that says why."""


class KafkaBroker:
    """One broker process.

    Parameters
    ----------
    folder : Path
        Holds properties, data and log; made if absent. A folder used before is started again with its data.
    port : int
        Port to listen on, 0 for any free one. It stays the same over restarts.
    options : sequence of str
        More options of the broker's Java, such as `BRIEF`.
    properties : sequence of str
        More lines for its properties, such as `GUARDED`.

    Raises
    ------
    ServerMissing
        If Java or Maven is missing or the jars cannot be had.
    """

    def __init__(
        self, folder: Path, port: int = 0, options: Sequence[str] = (), properties: Sequence[str] = ()
    ) -> None:
        self._jars = resolve_jars()
        self._options = options
        self._properties = properties
        self._folder = folder
        self._port = port
        self._chosen = port == 0
        self._process: subprocess.Popen[bytes] | None = None
        folder.mkdir(parents=True, exist_ok=True)

    @property
    def server(self) -> str:
        """``host:port`` for clients."""
        return f"127.0.0.1:{self._port}"

    @property
    def address(self) -> str:
        """What `trainwarden.bus.address.connect` takes."""
        return f"kafka://{self.server}"

    @property
    def running(self) -> bool:
        """Whether its process lives."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start, and return once a real request was answered."""
        for attempt in range(3):
            if self._chosen and not (self._folder / "data").exists():
                self._port = _free_port()
            try:
                self._start()
                return
            except RuntimeError:
                # Between choosing a free port and listening on it, somebody else may have taken it.
                if attempt == 2 or "BindException" not in self.log_tail():
                    raise
                shutil.rmtree(self._folder / "data", ignore_errors=True)

    def stop(self, patience_s: float = 20.0) -> None:
        """Ask it to shut down; kill it if it does not within `patience_s`."""
        self._end(signal.SIGTERM, patience_s)

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Start again with the same port and data."""
        self._end(signal.SIGTERM)
        self._start()

    def log_tail(self, lines: int = 40) -> str:
        """The end of the broker's log."""
        path = self._folder / "broker.log"
        return "\n".join(path.read_text(errors="replace").splitlines()[-lines:]) if path.exists() else ""

    def _start(self) -> None:
        properties = self._folder / "server.properties"
        data = self._folder / "data"
        text = PROPERTIES.read_text()
        for key, value in (("port", self._port), ("controller_port", _free_port()), ("data", data)):
            text = text.replace("{" + key + "}", str(value))
        properties.write_text("\n".join([text, *self._properties]))
        if not data.exists():
            # One in 64 begins with a dash: as a word of its own it would be taken for an option.
            cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
            done = subprocess.run(
                self._java(
                    BRIEF, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "-c", str(properties)
                ),
                capture_output=True,
                timeout=60,
                check=False,
            )
            if done.returncode:
                raise RuntimeError(f"Kafka storage cannot be formatted: {done.stderr.decode(errors='replace')[-2000:]}")
        with (self._folder / "broker.log").open("ab") as log:
            self._process = subprocess.Popen(
                self._java(self._options, "kafka.Kafka", str(properties)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - a single C call, which takes no lock
            )
        atexit.register(self.kill)
        self._wait_ready()

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + READY_TIMEOUT_S
        error: Exception | None = None
        while time.monotonic() < deadline:
            if self._process is None or self._process.poll() is not None:
                break
            try:
                # kafka-python leaves sockets and a thread behind where a first connection fails, so look first.
                socket.create_connection(("127.0.0.1", self._port), timeout=1.0).close()
                admin = KafkaAdminClient(bootstrap_servers=self.server, bootstrap_timeout_ms=5000)
                try:
                    admin.list_topics()
                    return
                finally:
                    admin.close()
            except (KafkaError, OSError) as problem:
                error = problem
                time.sleep(0.1)
        self._end(signal.SIGKILL)
        raise RuntimeError(f"Kafka did not become ready ({error}); end of its log:\n{self.log_tail()}")

    def _end(self, number: signal.Signals, patience_s: float = 20.0) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            self._process.send_signal(number)
            try:
                self._process.wait(timeout=patience_s)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait(timeout=20)
        self._process = None
        atexit.unregister(self.kill)

    def _java(self, options: Sequence[str], *command: str) -> list[str]:
        archive = _archive(self._jars)
        shared = [f"-XX:SharedArchiveFile={archive}"] if archive.exists() else []
        show = "-Dorg.slf4j.simpleLogger.showDateTime=true"
        return ["java", *_HEAP, *shared, *options, show, "-cp", f"{self._jars}/*", *command]


def resolve_jars() -> Path:
    """The folder with the broker's jars, filled by Maven where it is not yet; safe in several processes at once.

    Raises
    ------
    ServerMissing
        With the reason.
    """
    if shutil.which("java") is None:
        raise ServerMissing("Kafka needs Java 17 or newer, and there is no java on the PATH")
    if (version := _java_version()) < 17:
        raise ServerMissing(f"Kafka needs Java 17 or newer, and java here is {version}")
    folder = CACHE / f"jars-{hashlib.sha256(POM.read_bytes()).hexdigest()[:12]}"
    if (folder / ".complete").exists():
        return folder
    if shutil.which("mvn") is None:
        raise ServerMissing("Kafka's jars are resolved by Maven, and there is no mvn on the PATH")
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / ".complete").exists():
            _run_maven(folder)
    return folder


def archive_classes(folder: Path) -> None:
    """Keep the classes that a broker loads as the JVM has them in memory: 11 s of a processor to start become 4."""
    archive = _archive(resolve_jars())
    with (CACHE / "archive-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            made = archive.with_suffix(".new")
            broker = KafkaBroker(folder, options=(f"-XX:ArchiveClassesAtExit={made}",))
            broker.start()
            broker.stop(patience_s=120.0)
            if made.exists():  # a broker that was killed has written none, and the next one tries
                made.rename(archive)


def _archive(jars: Path) -> Path:
    return jars / "classes.jsa"


def _run_maven(folder: Path) -> None:
    command = ["mvn", "-B", "-q", "-f", str(POM), "dependency:copy-dependencies", f"-DoutputDirectory={folder}"]
    try:
        done = subprocess.run(command, capture_output=True, timeout=RESOLVE_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise ServerMissing(f"Maven did not resolve Kafka's jars within {RESOLVE_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        said = (done.stdout + done.stderr).decode(errors="replace").strip().splitlines()
        raise ServerMissing(f"Maven could not resolve Kafka's jars: {said[0][:500] if said else 'it said nothing'}")
    (folder / ".complete").touch()


def _java_version() -> int:
    said = subprocess.run(["java", "-version"], capture_output=True, text=True, timeout=30, check=False).stderr
    found = re.search(r'version "(\d+)', said)
    return int(found.group(1)) if found else 0


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def die_with_parent() -> None:
    """In the child: be killed when the process that runs the tests dies, however it dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def main() -> None:
    """Run a broker until it is interrupted."""
    parser = argparse.ArgumentParser(description="Run a real Apache Kafka broker (KRaft, one node) until Ctrl-C.")
    parser.add_argument("--port", type=int, default=9092)
    parser.add_argument("--data", type=Path, help="folder that keeps its data (default: .cache/kafka/broker-PORT)")
    arguments = parser.parse_args()
    try:
        broker = KafkaBroker(arguments.data or CACHE / f"broker-{arguments.port}", arguments.port)
    except ServerMissing as error:
        raise SystemExit(str(error)) from None
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    broker.start()
    print(f"Kafka is ready at {broker.address} (process {os.getpid()}); Ctrl-C stops it", flush=True)
    try:
        while not stop.wait(0.5):
            if not broker.running:
                raise SystemExit(f"Kafka has ended by itself; end of its log:\n{broker.log_tail()}")
    finally:
        broker.stop()


if __name__ == "__main__":
    main()
