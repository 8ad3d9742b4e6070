"""Whatever a writer does to a log file and whenever the agent looks or is killed: every whole line once, in order."""

from __future__ import annotations

import tempfile
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from tests.doubles import ManualClock
from tests.examples import examples
from trainwarden.collectors.logs.collector import LogsCollector
from trainwarden.protocols import JsonObject, Scope
from trainwarden.records import LogRecord

# Lines hold no digits alone, so that no two have one template.
_WORDS = st.text(alphabet="abcXYZ \u00fc\u2603", min_size=1, max_size=30).filter(lambda text: bool(text.strip()))
_WRITE = st.tuples(st.just("write"), st.lists(_WORDS, min_size=1, max_size=5), st.lists(st.integers(1, 40), max_size=4))
_STEP = st.one_of(_WRITE, st.sampled_from([("read",), ("rotate",), ("truncate",), ("kill",), ("keep",)]))


class Model:
    """A log file, its writer, and a collector that loses its memory when it is killed."""

    def __init__(self, run_dir: Path, batch_bytes: int) -> None:
        self.run_dir = run_dir
        (run_dir / "logs").mkdir()
        self.path = run_dir / "logs" / "rank-0.log"
        self.clock = ManualClock(1000.0)
        self.config = LogsCollector.Config(kmsg=False, flood_lines=100_000, batch_bytes=batch_bytes)
        self.written: list[str] = []
        self.got: dict[int, str] = {}
        self.highest = 0
        self.kept: JsonObject | None = None
        self.collector = self._new()

    def _new(self) -> LogsCollector:
        scope = Scope(job="job", node="n0", run_dir=str(self.run_dir))
        collector = LogsCollector(self.config, scope, self.clock)
        if self.kept is not None:
            collector.restore(self.kept)
        return collector

    def write(self, words: list[str], cuts: list[int]) -> None:
        """Append lines in arbitrary pieces, with a look in between, as a slow writer does."""
        lines = [f"{len(self.written) + place}-{word.rstrip()}|" for place, word in enumerate(words)]
        self.written.extend(lines)
        data = "".join(f"{line}\n" for line in lines).encode()
        for cut in cuts:
            self._append(data[:cut])
            data = data[cut:]
            self.read()
        self._append(data)

    def _append(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)

    def read(self) -> None:
        self.clock.sleep(0.2)
        for record in self.collector.collect(self.clock.now_s()):
            assert isinstance(record, LogRecord)
            for end, line in zip(record.ends, record.lines, strict=True):
                if end > self.highest:  # what every reader does with records that come twice
                    self.highest = end
                    self.got[end] = line
                else:
                    assert self.got[end] == line

    def keep(self) -> None:
        """What the agent does once the bus has everything."""
        self.kept = self.collector.position()

    def kill(self) -> None:
        self.collector.close()
        self.collector = self._new()

    def rotate(self) -> None:
        if not self.path.exists():
            return
        old = sorted(self.path.parent.glob("rank-0.log.*"), key=lambda path: -int(path.suffix[1:]))
        for path in old:
            path.rename(path.with_suffix(f".{int(path.suffix[1:]) + 1}"))
        self.path.rename(self.path.with_name("rank-0.log.1"))

    def truncate(self) -> None:
        """Truncation destroys what was not read, so it is only tried after all was read and kept."""
        if self.path.exists():
            self.settle()
            self.path.write_bytes(b"")
            self.read()
            self.keep()

    def settle(self) -> None:
        self._append(b"")
        for _ in range(60):
            self.read()
        self.keep()


@examples(150)
@given(st.lists(_STEP, max_size=25), st.sampled_from([65_536, 262_144]))
def test_every_line_once_and_in_order(steps: list[tuple[object, ...]], batch_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        model = Model(Path(folder), batch_bytes)
        for step in steps:
            getattr(model, str(step[0]))(*step[1:])
        model.settle()
        model.collector.close()
        assert [model.got[end] for end in sorted(model.got)] == model.written
