"""Templates, filled in: everything that is put into one is escaped unless it is markup of our own."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from trainwarden import __version__
from trainwarden.dashboards.explain.next_steps import quoted
from trainwarden.dashboards.page import formatting

STATIC: Final = Path(__file__).with_name("static")
_TEMPLATES: Final = Path(__file__).with_name("templates")


def render(template: str, /, **context: Any) -> str:
    """The page that `template` makes of `context`."""
    return _environment().get_template(template).render(context)


@cache
def asset(name: str) -> str:
    """The text of one of our own static files."""
    return (STATIC / name).read_text(encoding="utf-8")


def data(value: Any) -> Markup:
    """`value` as JSON within a ``<script type="application/json">``, which nothing in it can end.

    Examples
    --------
    >>> str(data({"line": "</script>"}))
    '{"line":"\\\\u003c/script\\\\u003e"}'
    """
    text = msgspec.json.encode(value).decode()
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return Markup(text)  # noqa: S704 - no sign in it is markup any more


def part(text: str) -> str:
    """One part of a URL's path."""
    return quote(text, safe="")


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "iso": formatting.iso, "clock": formatting.clock, "seconds": formatting.seconds, "times": formatting.times,
        "facts": formatting.facts, "cut": formatting.cut, "data": data, "part": part, "quoted": quoted,
    }  # fmt: skip
    made.globals |= {"version": __version__}
    return made
