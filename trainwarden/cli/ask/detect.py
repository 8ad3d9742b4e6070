"""`trainwarden detect`: detection by hand, of recorded folders or a Prometheus; one JSON object, lines for people."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

from trainwarden.cli.ask.detect_fleet import Door, Span, judged_fleet
from trainwarden.cli.ask.detect_job import JobSource, recorded_job
from trainwarden.cli.ask.detect_jobs import Asked, jobs_to_judge, judged_in_order, parsed_columns
from trainwarden.cli.ask.detect_judged import judged_words
from trainwarden.cli.ask.judging.detect_answer import answer_of_all, answer_words
from trainwarden.cli.ask.judging.kept_result import keep_result
from trainwarden.cli.shared.answers import EXIT_CODES
from trainwarden.cli.shared.formatting import counted, moment
from trainwarden.cli.shared.options import BusAddress, ConfigFile, Json, job_name
from trainwarden.cli.shared.output import Voice
from trainwarden.errors import ConfigError, DataError
from trainwarden.records import IncidentRecord

SHOWN = 12  # incidents that people are shown; the JSON has all
FOUND = (
    ("incidents", "incident"),
    ("change_points", "change point"),
    ("stragglers", "straggler"),
    ("log_findings", "log finding"),
)


def detect(
    path: Annotated[
        Path | None, typer.Argument(metavar="[PATH]", help="As --data; - is standard input.", show_default=False)
    ] = None,
    *,
    data: Annotated[
        Path | None, typer.Option("--data", help="A file or folder in any known format, or a folder of such folders.")
    ] = None,
    columns: Annotated[
        str | None, typer.Option(metavar="ROLE=COLUMN,...", help="Of a table: which column is what (time=when).")
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="A Prometheus with metrics of dcgm-exporter and node_exporter.")
    ] = None,
    job: Annotated[
        str | None, typer.Option(metavar="NAME", callback=job_name, help="A job on the bus, or in the archive.")
    ] = None,
    bus: BusAddress = None,
    archive: Annotated[Path | None, typer.Option(metavar="DIR", help="With --job: the archive to read.")] = None,
    match: Annotated[
        str, typer.Option(metavar="SELECTOR", help="Only series with these labels, e.g. 'cluster=\"a\"'.")
    ] = "",
    since: Annotated[
        str | None, typer.Option(help="From so long ago (90s, 30m, 12h, 7d); of a Prometheus 30m.")
    ] = None,
    from_: Annotated[
        str | None, typer.Option("--from", metavar="T", help="From T (seconds since 1970, or ISO 8601).")
    ] = None,
    to: Annotated[str | None, typer.Option(metavar="T", help="Up to T; default now.")] = None,
    step: Annotated[
        str | None, typer.Option(help="Width of a step; default the scrape interval, 15s at least.")
    ] = None,
    by: Annotated[str | None, typer.Option(metavar="LABEL", help="One job of each value of this label.")] = None,
    token_file: Annotated[Path | None, typer.Option(metavar="FILE", help="A bearer token.")] = None,
    ca_file: Annotated[Path | None, typer.Option(metavar="FILE", help="Authorities to believe (PEM).")] = None,
    client_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate and key to show (PEM).")] = None,
    normal_until: Annotated[
        str | None, typer.Option(metavar="T", help="Rows before T (seconds or ISO 8601) are normal training.")
    ] = None,
    normal: Annotated[Path | None, typer.Option(metavar="DIR", help="A recording that is normal throughout.")] = None,
    models: Annotated[str | None, typer.Option(metavar="URI", help="Trained models.")] = None,
    detectors: Annotated[str | None, typer.Option(metavar="A,B", help="Ask these detectors only.")] = None,
    scores: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Scores of every row of metrics: .csv, .csv.gz or .parquet.")
    ] = None,
    json: Json = None,
    config: ConfigFile = None,
) -> int:
    """Judge recorded folders, a job or a range of a Prometheus in time order; exit code 1 if an incident was found.

    Example: trainwarden detect --data recording/ --normal-until 3600 --json

    Example: trainwarden detect --data nvidia-smi.csv

    Example: kubectl logs --prefix -l job=llama | trainwarden detect -

    Example: trainwarden detect --prometheus http://prometheus:9090 --since 30m

    Example: trainwarden detect --job llama-70b --since 2h
    """
    voice = Voice(json)
    span = Span(match, since, from_, to, step, by)
    said = tuple(parsed_columns(columns).items())
    asked = Asked(normal_until, normal, models, detectors, scores is not None, columns=said)
    if path is not None and data is not None:
        raise ConfigError(f"'{path}' and --data '{data}': name what is to be judged once")
    data = data if path is None else path
    if sum(source is not None for source in (data, prometheus, job)) != 1:
        raise ConfigError("say what is to be judged: --data DIR, --job NAME or --prometheus URL")
    if prometheus is not None:
        if asked != Asked(None, None, None, detectors, False):
            raise ConfigError("--normal-until, --normal, --models, --scores and --columns go with --data and --job")
        return _fleet(Door(prometheus, token_file, ca_file, client_cert), span, detectors, config, voice)
    if span.of_fleets:
        raise ConfigError("--match, --step and --by go with --prometheus")
    if job is not None:
        span_s = span.between_s(time.time()) if span.timed else None
        with recorded_job(JobSource(job, bus, archive, config), span_s) as folder:
            return _recordings(folder, replace(asked, span_s=span_s), config, scores, voice)
    if span.timed or bus is not None or archive is not None:
        raise ConfigError("--since, --from, --to, --bus and --archive do not go with --data")
    if str(data) == "-":
        with standard_input() as file:
            return _recordings(file, asked, config, scores, voice)
    return _recordings(Path(str(data)), asked, config, scores, voice)


@contextmanager
def standard_input() -> Iterator[Path]:
    """What comes in by standard input, as a file that lives as long as it is judged.

    Raises
    ------
    ConfigError
        If it is closed.
    """
    if sys.stdin is None:  # as Python has it then
        raise ConfigError("detect -: standard input is closed; pipe or redirect something into it")
    with TemporaryDirectory(prefix="trainwarden-") as folder:
        file = Path(folder) / "stdin"
        with file.open("wb") as out:
            shutil.copyfileobj(sys.stdin.buffer, out)
        yield file


def _fleet(door: Door, span: Span, detectors: str | None, config: Path | None, voice: Voice) -> int:
    began_s = time.monotonic()
    answer, records = judged_fleet(door, span, detectors, config)
    for note in answer["partial"]:
        sys.stderr.write(f"trainwarden: this is a partial answer: {note}\n")
    for job in answer["jobs"]:
        _tell(voice, job, f"{job['job']}: {job['input']['nodes']} nodes, {job['input']['entities']} devices: ")
        for sentence in job.get("silent", ()):
            voice.say(f"  {sentence}")
    said = answer_of_all(answer["jobs"])
    keep_result("detect-prometheus", records, {"answer": said})
    voice.answer({**answer, "answer": said, "wall_s": round(time.monotonic() - began_s, 3)})
    return EXIT_CODES[said]


def _recordings(data: Path, asked: Asked, config: Path | None, scores: Path | None, voice: Voice) -> int:
    from trainwarden.cli.ask.detect_scores import ScoresFile

    began_s = time.monotonic()
    jobs, batch = jobs_to_judge(data, asked, config)
    target = ScoresFile.open(scores) if scores is not None else None
    answers: list[dict[str, Any]] = []
    records: list[IncidentRecord] = []
    failed = 0
    try:
        for number, judged in enumerate(judged_in_order(jobs, voice.say), 1):
            if judged.failed and not batch:
                raise DataError(str(judged.answer["error"]))
            failed += judged.failed
            answers.append(judged.answer)
            records.extend(judged.records)
            if target is not None and judged.scores is not None:
                target.add(judged.answer["job"], judged.scores)
            _tell(voice, judged.answer, f"[{number}/{len(jobs)}] {judged.answer['job']}: ")
            for sentence in judged_words(judged.answer):
                voice.say(f"  {sentence}")
    finally:
        if target is not None:
            target.close()
    said = answer_of_all(answers)
    keep_result(f"detect-{data.resolve().name}", records, {"answer": said})
    voice.answer({"jobs": answers, "answer": said, "wall_s": round(time.monotonic() - began_s, 3)})
    if failed and failed == len(jobs):
        raise DataError(f"none of the {failed} jobs of '{data}' could be read")
    return EXIT_CODES[said]


def _tell(voice: Voice, answer: dict[str, Any], lead: str) -> None:
    if "error" in answer:
        voice.say(f"{lead}cannot be judged: {answer['error']}")
        return
    found = [(len(answer[key]), word) for key, word in FOUND]
    told = ", ".join(counted(count, word) for count, word in found if count)
    voice.say(lead + (told if answer["incidents"] else "; ".join(filter(None, (told, answer_words(answer))))))
    for incident in answer["incidents"][:SHOWN]:
        who = ", ".join(_who(suspect) for suspect in incident["suspects"][:3])
        voice.say(
            f"  {incident['severity']} {incident['kind']} at {moment(incident['opened_at_s'])}"
            + (f", step {incident['opened_step']}" if incident["opened_step"] is not None else "")
            + (f", {who}" if who else "")
            + f": {incident['reason']}"
        )
    if len(answer["incidents"]) > SHOWN:
        voice.say(f"  ... and {len(answer['incidents']) - SHOWN} more")


def _who(suspect: dict[str, Any]) -> str:
    rank = None if suspect["rank"] is None else f"rank {suspect['rank']}"
    return " ".join(word for word in (rank, suspect["node"], suspect["device"]) if word) or "the job"
