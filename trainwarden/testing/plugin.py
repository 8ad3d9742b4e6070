"""What plug-ins of every kind have in common, as checks: a typed `Config`, a page, metrics and events of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from trainwarden import plugins
from trainwarden.errors import ConfigError
from trainwarden.settings import Config


def check_plugin(plugin: type[Any]) -> None:
    """A plug-in of any kind: documented, with a typed frozen `Config`; its metrics and events are well named.

    Raises
    ------
    AssertionError
        With one sentence on what is not as it should be.
    """
    name = plugin.__name__
    config: type[Any] = getattr(plugin, "Config", object)
    assert issubclass(config, Config), f"{name}.Config must be a trainwarden.settings.Config"
    assert plugin.__doc__, f"{name} needs a docstring"
    assert config.__doc__, f"{name}.Config needs a docstring"
    assert config.__struct_config__.frozen, f"{name}.Config must be frozen"
    says = refused(ConfigError, lambda: plugins.configure(plugin, {"nonesuch": 1}, "here"))
    assert says.startswith("here: "), f"{name}.Config must refuse settings that it does not know, and said {says!r}"
    plugins.admit(plugin, name)
    for metric in plugins.metrics_of(plugin, name):
        named = metric.name.startswith(f"{metric.per}_") and metric.name.endswith(f"_{metric.unit}")
        assert named, f"metric {metric.name} must begin with '{metric.per}_' and end in '_{metric.unit}'"
        assert metric.meaning.endswith("."), f"the meaning of metric {metric.name} must be a sentence"
    for kind, fields in getattr(plugin, "events", {}).items():
        assert "." in kind, f"event kind '{kind}' must carry its plug-in's name and a dot"
        assert issubclass(fields, msgspec.Struct), f"the fields of event kind '{kind}' must be a msgspec.Struct"


def check_page(plugin: type[Any]) -> None:
    """A third party's plug-in brings a page for whoever operates it.

    Raises
    ------
    AssertionError
        If there is none.
    """
    path = plugins.beside(plugin, "page")
    assert path is not None, f"{plugin.__name__} names no page: set `page` to a Markdown file beside it"
    assert path.is_file(), f"the page of {plugin.__name__} is not there: {path}"
    assert path.read_text(encoding="utf-8").startswith("# "), f"{path.name} must begin with a heading"


def refused(error: type[Exception], ask: Callable[[], Any]) -> str:
    """What `ask` is refused with; an AssertionError if it is not."""
    try:
        ask()
    except error as caught:
        return str(caught)
    raise AssertionError(f"settings that are wrong must raise {error.__name__}")
