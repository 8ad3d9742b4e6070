"""Which column of a table is what: by the command line's `--columns`, else by the columns' names."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from trainwarden.catalogue import CATALOGUE
from trainwarden.errors import ConfigError
from trainwarden.formats import names
from trainwarden.formats.vocabulary import FIELDS, SHORT, SPELLINGS

WORDS: Final = ("time", "node", "device", "rank", "model", "step", "duration", "metric", "value")
_GPU: Final = re.compile(r"(?i)(?:gpu|nvidia|card|cuda:?)[ _#:]{0,2}([0-9]{1,4})$")
_NO_METRICS: Final = ("pid", "pod", "namespace", "container")
_DIGITS: Final = re.compile(r"[0-9]{1,4}(?:\.0)?$")


@dataclass(slots=True)
class Roles:
    """Names of columns; None where no column is it."""

    time: str | None = None
    date: str | None = None
    node: str | None = None
    device: str | None = None
    rank: str | None = None
    model: str | None = None
    step: str | None = None
    duration: str | None = None
    series: str | None = None
    value: str | None = None
    as_metric: dict[str, str] = field(default_factory=dict)
    identities: tuple[str, ...] = ()
    constant: str | None = None

    @property
    def not_metrics(self) -> set[str]:
        """Columns that are no metrics."""
        found = {self.time, self.date, self.node, self.device, self.rank, self.model, self.step, self.series}
        return {one for one in (*found, *self.identities) if one is not None}


def roles_of(columns: Sequence[str], said: Mapping[str, str]) -> Roles:
    """The roles of `columns`.

    Raises
    ------
    ConfigError
        If `said` names what is no role, or a column that is not there.

    Examples
    --------
    >>> found = roles_of(["timestamp", "gpu", "Hostname", "power.draw [W]"], {})
    >>> found.time, found.device, found.node
    ('timestamp', 'gpu', 'Hostname')
    >>> roles_of(["when", "x"], {"time": "when", "value": "x", "metric": "gpu_power_watts"}).constant
    'gpu_power_watts'
    """
    roles = Roles()
    roles.time = _first(columns, names.TIME)
    roles.node = _first(columns, names.NODE)
    roles.rank = _first(columns, names.RANK)
    roles.step = _first(columns, names.STEP)
    if roles.step is None and names.EPOCH in {names.plain(one) for one in columns}:
        roles.step = next(one for one in columns if names.plain(one) == names.EPOCH)  # Keras counts nothing else
        roles.time = None if roles.time == roles.step else roles.time
    roles.value = _first(columns, names.VALUE)
    roles.series = _first(columns, names.SERIES) if roles.value is not None else None
    roles.device = _first(columns, names.DEVICE, but=(roles.series,))
    roles.model = _first(columns, names.MODEL, but=(roles.series, roles.device))
    plain = {names.plain(one): one for one in columns}
    if "date" in plain and "time" in plain:
        roles.date, roles.time = plain["date"], plain["time"]
    roles.identities = tuple(
        one for one in columns
        if names.known(one, (*names.DEVICE, *names.NODE)) or names.plain(one) in _NO_METRICS
    )  # fmt: skip
    _say(roles, columns, said)
    return roles


def _first(columns: Sequence[str], words: Sequence[str], but: Sequence[str | None] = ()) -> str | None:
    listed = {form: one for one in reversed(columns) if one not in but for form in names.forms(one)}
    return next((listed[word] for word in words if word in listed), None)


def _say(roles: Roles, columns: Sequence[str], said: Mapping[str, str]) -> None:
    """Lay the command line's word over `roles`; a file that has none of its columns is read by its own names."""
    if not any(column in columns for column in said.values()):
        return
    for word, column in said.items():
        if word in CATALOGUE:
            if column in columns:
                roles.as_metric[column] = word
        elif word == "metric" and column not in columns:
            roles.constant = column
        elif column not in columns:
            raise ConfigError(f"--columns: there is no column '{column}'; there are: {', '.join(columns[:20])}")
        elif word == "metric":
            roles.series = column
        else:
            setattr(roles, word, column)
    if roles.value is not None and roles.constant is not None:
        roles.as_metric[roles.value] = roles.constant


def parse_columns(text: str | None) -> dict[str, str]:
    """The option `--columns ROLE=COLUMN,...`.

    Raises
    ------
    ConfigError
        If it is not of that form.

    Examples
    --------
    >>> parse_columns("time=when,gpu_power_watts=watts")
    {'time': 'when', 'gpu_power_watts': 'watts'}
    """
    found: dict[str, str] = {}
    for part in (text or "").split(","):
        if not part.strip():
            continue
        word, equals, column = part.partition("=")
        word = word.strip()
        if not equals or not column.strip() or (word not in WORDS and word not in CATALOGUE):
            raise ConfigError(
                f"--columns: '{part}' is not ROLE=COLUMN with a role of {', '.join(WORDS)}, or a metric of ours"
            )
        found[word] = column.strip()
    return found


def of_gpus(columns: Sequence[str], roles: Roles) -> bool:
    """Whether rows are of GPUs: by the device's column, or because most metrics are a GPU's by their own names."""
    if roles.device is not None and ("gpu" in roles.device.lower() or names.plain(roles.device) in ("index", "card")):
        return True
    found = [one for one in columns if one not in roles.not_metrics and (heading := names.metric_of(one)) is not None
             and heading.name.startswith("gpu_") and names.plain(one) not in SHORT]  # fmt: skip
    return bool(found)


def heading_of(column: str, roles: Roles, gpus: bool) -> names.Heading | None:
    """The metric that a column holds, as far as the table's rows allow that."""
    if column in roles.as_metric:
        metric = names.metric_of(roles.as_metric[column])
        return metric or names.Heading(roles.as_metric[column], 1.0, "")
    if (
        not gpus
        and names.plain(column) in SHORT
        and (names.plain(column) in SPELLINGS or names.plain(column) in FIELDS)
    ):
        return None
    return names.metric_of(column)


def device_name(cell: object, gpus: bool) -> str | None:
    """The device that a cell names: GPUs by their number are called as ours are.

    Examples
    --------
    >>> [device_name(cell, True) for cell in ("6", "GPU 6", "nvidia6", "mlx5_0", "", 6.0)]
    ['gpu6', 'gpu6', 'gpu6', 'mlx5_0', None, 'gpu6']
    """
    text = "" if cell is None else str(cell).strip().strip('"')
    if not text or text.lower() in ("nan", "none", "n/a"):
        return None
    if (match := _GPU.match(text)) is not None:
        return f"gpu{int(match[1])}"
    if gpus and _DIGITS.match(text):
        return f"gpu{int(float(text))}"
    return text
