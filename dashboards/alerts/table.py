"""The table of alerts. Each has a page in docs/runbooks; `TrainwardenIncident` has one for each kind of incident.

A counter whose labels are known is born at 0, so that `increase` sees its first count. Where the label is
what went wrong, `_counted` also takes a series that was not there before.
"""

from __future__ import annotations

from typing import Final

from trainwarden.dashboards.alerts.alert import Alert

_JOB: Final = '{{ reReplaceAll "[^A-Za-z0-9._-]" "_" $labels.training_job }}'
"""A job's name as part of a command that somebody will paste into a shell."""
_SUSPECTS: Final = (
    '{{ with printf "topk(3, trainwarden_suspect_score{training_job=%q,kind=%q})" $labels.training_job $labels.kind '
    "| query }}Most likely: {{ range . }}"
    "{{ with .Labels.rank }}rank {{ . }} {{ end }}{{ with .Labels.node }}node {{ . }} {{ end }}"
    '{{ with .Labels.device }}device {{ . }} {{ end }}({{ .Value | printf "%.2f" }}); {{ end }}{{ end }}'
)
_WHO: Final = "{{ $labels.service }}{{ with $labels.instance }} at {{ . }}{{ end }}"
_DOCTOR: Final = "trainwarden doctor --config trainwarden.toml"
_FAILED: Final = 'trainwarden_actions_total{outcome="failed"}'
_LOOPS: Final = ("detector", "engine", "trainer", "archive", "serve")


def _increased(*names: str) -> str:
    """More than ten minutes ago."""
    return " or ".join(f"increase({name}[10m]) > 0" for name in names)


def _counted(*names: str) -> str:
    """More than ten minutes ago, or for the first time."""
    return f"{_increased(*names)} or {' or '.join(map(_new, names))}"


def _new(name: str) -> str:
    """A count that was not there ten minutes ago, nor in the hour before: a scrape that failed makes none new."""
    return f"({name} unless last_over_time({name}[1h] offset 10m)) > 0"


OF_JOBS: Final = (
    Alert(
        "TrainwardenIncident",
        "max by (training_job, kind, severity) (trainwarden_incidents_open) > 0",
        "{{ $labels.kind }} ({{ $labels.severity }}) in {{ $labels.training_job }}",
        f"trainwarden incidents --open --job {_JOB}",
        page="{{ $labels.kind }}",
        details=_SUSPECTS,
    ),
    Alert(
        "TrainwardenActionWaits",
        "max by (training_job) (trainwarden_actions_waiting) > 0",
        "an action in {{ $labels.training_job }} waits for a person's word",
        f"trainwarden actions --job {_JOB}",
        severity="sev2",
    ),
    Alert(
        "TrainwardenActionFailed",
        f"sum by (training_job, kind) ({_counted(_FAILED)})",
        "{{ $labels.kind }} in {{ $labels.training_job }} was tried and did not work",
        f"trainwarden actions --job {_JOB}",
        severity="sev2",
    ),
    Alert(
        "TrainwardenSlowIterations",
        "trainwarden:iteration_slowdown:ratio > 1.2 unless on (training_job) trainwarden_incidents_open > 0",
        "{{ $labels.training_job }} takes a fifth longer than when healthy, and no incident says why",
        f"trainwarden report --job {_JOB}",
        for_s=300,
        severity="sev3",
    ),
    Alert(
        "TrainwardenNotJudged",
        "time() - max by (training_job) (trainwarden_verdict_timestamp_seconds) > 60 "
        "and on (training_job) changes(trainwarden_job_step[1m]) > 0 "
        "or max by (training_job) (changes(trainwarden_job_step[1m])) > 0 "
        "unless on (training_job) trainwarden_verdict_timestamp_seconds",
        "{{ $labels.training_job }} trains and nobody judges it",
        _DOCTOR,
        for_s=60,
        severity="sev2",
    ),
    Alert(
        "TrainwardenAgentSilent",
        "time() - max by (training_job, node) (trainwarden_node_seen_timestamp_seconds) > 60 "
        "and on (training_job) changes(trainwarden_job_step[1m]) > 0",
        "{{ $labels.training_job }} trains on, and the agent of {{ $labels.node }} says nothing",
        _DOCTOR,
        for_s=60,
        severity="sev3",
    ),
    Alert(
        "TrainwardenActingStopped",
        "max(trainwarden_acting_stopped) == 1",
        "a person stopped all acting an hour ago or more",
        "trainwarden actions resume",
        for_s=3600,
        severity="sev3",
    ),
)

OF_SERVICES: Final = (
    Alert(
        "TrainwardenDown",
        'up{job=~".*trainwarden.*"} == 0',
        "{{ $labels.instance }} does not answer",
        _DOCTOR,
        for_s=60,
        severity="sev2",
    ),
    Alert(
        "TrainwardenSilent",
        "time() - trainwarden_heartbeat_timestamp_seconds > 60 "
        'or absent(trainwarden_heartbeat_timestamp_seconds{service="agent"}) '
        'or absent(trainwarden_heartbeat_timestamp_seconds{service="detector"})',
        f"{_WHO} has done no work for a minute",
        _DOCTOR,
        for_s=30,
        severity="sev2",
    ),
    Alert(
        "TrainwardenBusAway",
        "trainwarden_up == 0",
        f"the bus does not answer the {_WHO}",
        _DOCTOR,
        for_s=60,
        severity="sev2",
    ),
    Alert(
        "TrainwardenLagging",
        "trainwarden_bus_lag_records > 1000",
        f"the {_WHO} is behind what is written",
        _DOCTOR,
        for_s=300,
        severity="sev2",
    ),
    Alert(
        "TrainwardenSpooling",
        "trainwarden_agent_spool_records_count > 0",
        "records of {{ $labels.instance }} wait on its disk",
        _DOCTOR,
        for_s=120,
        severity="sev3",
    ),
    Alert(
        "TrainwardenRecordsDropped",
        _increased("trainwarden_agent_dropped_records_total"),
        "the agent at {{ $labels.instance }} gave records up ({{ $labels.why }})",
        _DOCTOR,
        severity="sev2",
    ),
    Alert(
        "TrainwardenCollectorStuck",
        "trainwarden_agent_stuck_collectors_count > 0",
        "a collector at {{ $labels.instance }} does not come back from its source",
        _DOCTOR,
        for_s=60,
        severity="sev3",
    ),
    Alert(
        "TrainwardenCollectorFailing",
        "increase(trainwarden_agent_collector_errors_total[5m]) > 0",
        "collector {{ $labels.collector }} at {{ $labels.instance }} fails again and again",
        _DOCTOR,
        for_s=600,
        severity="sev3",
    ),
    Alert(
        "TrainwardenDeadLetters",
        _increased(
            *(f"trainwarden_{name}_dead_letters_total" for name in _LOOPS),
            *(f"trainwarden_{name}_undecodable_total" for name in _LOOPS),
            "trainwarden_archive_rejected_total",
        ),
        "records from the bus could not be handled at {{ $labels.instance }}",
        _DOCTOR,
        severity="sev3",
    ),
    Alert(
        "TrainwardenErrors",
        _counted(*(f"trainwarden_{name}_errors_total" for name in _LOOPS)),
        "work failed with {{ $labels.kind }} at {{ $labels.instance }}",
        _DOCTOR,
        severity="sev3",
    ),
    Alert(
        "TrainwardenOutputRefused",
        _counted(*(f"trainwarden_{name}_outputs_refused_total" for name in _LOOPS)),
        "a record of ours ({{ $labels.kind }}) did not fit the bus, at {{ $labels.instance }}",
        _DOCTOR,
        severity="sev3",
    ),
    Alert(
        "TrainwardenDetectorSetAside",
        _increased("trainwarden_detector_set_aside_total"),
        "{{ $labels.what }} was set aside after a defect, at {{ $labels.instance }}",
        "trainwarden incidents --open",
        severity="sev2",
    ),
    Alert(
        "TrainwardenDetectorFailing",
        "increase(trainwarden_detector_detector_errors_total[5m]) > 0",
        "detector {{ $labels.detector }} cannot judge, at {{ $labels.instance }}",
        _DOCTOR,
        for_s=600,
        severity="sev3",
    ),
    Alert(
        "TrainwardenSnapshotsFailing",
        _increased("trainwarden_detector_snapshots_failed_total", "trainwarden_detector_snapshots_refused_total"),
        "what the detector at {{ $labels.instance }} remembers is not kept",
        _DOCTOR,
        severity="sev3",
    ),
    Alert(
        "TrainwardenModelsAway",
        "trainwarden_detector_model_source_failing == 1",
        "the detector at {{ $labels.instance }} gets no new models; the last good ones serve on",
        _DOCTOR,
        for_s=300,
        severity="sev3",
    ),
    Alert(
        "TrainwardenRegistryAway",
        "trainwarden_trainer_registry_away == 1",
        "the trainer at {{ $labels.instance }} cannot reach the registry of models",
        _DOCTOR,
        for_s=300,
        severity="sev3",
    ),
    Alert(
        "TrainwardenTrainingFailing",
        "trainwarden_trainer_failed_in_a_row >= 2",
        "training has failed twice in a row, at {{ $labels.instance }}",
        "trainwarden models list",
        severity="sev3",
    ),
    Alert(
        "TrainwardenEngineDeaf",
        "trainwarden_engine_deaf == 1",
        "the engine at {{ $labels.instance }} cannot hear commands and does nothing",
        _DOCTOR,
        for_s=60,
        severity="sev2",
    ),
    Alert(
        "TrainwardenCoordinatorAway",
        "time() - max(trainwarden_coordinator_seen_timestamp_seconds) > 60",
        "the coordinator reports nothing, so nodes stay with the jobs that have them",
        "trainwarden plan cluster --live",
        for_s=60,
        severity="sev3",
    ),
    Alert(
        "TrainwardenEvictionsLatched",
        "trainwarden_engine_latched >= 1",
        "too many nodes were taken out; none is any more until a person has looked",
        "trainwarden actions",
        severity="sev2",
    ),
    Alert(
        "TrainwardenCommandsRefused",
        _increased("trainwarden_engine_commands_refused_total"),
        "somebody commands the engine without a right to ({{ $labels.reason }})",
        "trainwarden actions --since 1h",
        severity="sev2",
    ),
    Alert(
        "TrainwardenLauncherErrors",
        _increased("trainwarden_engine_launcher_errors_total"),
        "the launcher did not do what the engine asked ({{ $labels.kind }})",
        "trainwarden actions",
        severity="sev2",
    ),
    Alert(
        "TrainwardenNoticesFailing",
        _counted('trainwarden_serve_notices_total{outcome=~"failed|dropped"}'),
        "notices to {{ $labels.host }} do not arrive ({{ $labels.outcome }})",
        _DOCTOR,
        severity="sev2",
    ),
    Alert(
        "TrainwardenArchiveWaiting",
        "trainwarden_archive_waiting_bytes > 268435456",
        "the archive at {{ $labels.instance }} does not get rows onto its disk",
        "trainwarden archive list",
        for_s=300,
        severity="sev3",
    ),
    Alert(
        "TrainwardenNotReplicated",
        "time() - max by (training_job) (trainwarden_keeper_replicated_timestamp_seconds) "
        "> 3 * max by (training_job) (trainwarden_keeper_interval_seconds) "
        "or max by (training_job) (trainwarden_keeper_interval_seconds) "
        "unless on (training_job) trainwarden_keeper_replicated_timestamp_seconds",
        "a lost node costs {{ $labels.training_job }} more than 3 intervals: no new checkpoint has a copy elsewhere",
        f"trainwarden checkpoints --job {_JOB}",
        for_s=120,
        severity="sev2",
    ),
)

ALERTS: Final = OF_JOBS + OF_SERVICES
