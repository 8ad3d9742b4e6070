"""Module paths of version 0.1, whose packages lay beside `trainwarden` and not below it.

Plug-ins of third parties import ``detectors.protocol``, and MLflow keeps ``trainer_offline.registry.pyfunc`` as the
loader of each model that was registered then. `accept` lets both work. A package of the user's own with such a name
comes first. Plug-ins get it by themselves; a program that gives a registered model to MLflow calls it before.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Final

FORMER: Final = frozenset({"actions", "collectors", "dashboards", "detectors", "trainer_offline"})


class _FormerNames(MetaPathFinder, Loader):
    """Gives a module of today under its former path; asked last, after everything that is on ``sys.path``."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None, /
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] in FORMER:
            with suppress(ModuleNotFoundError):
                if find_spec(f"trainwarden.{fullname}") is not None:
                    return ModuleSpec(fullname, self)
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The one module of today, not a second of it: its classes are compared and its tables filled.
        today = import_module(f"trainwarden.{module.__name__}")
        if hasattr(today, "__path__"):
            vars(module).update({name: value for name, value in vars(today).items() if not name.startswith("__")})
            module.__path__ = []  # whoever looks there finds nothing, and so asks here for what lies in the package
        else:
            sys.modules[module.__name__] = today


def accept() -> None:
    """From now on this process knows modules by their former paths too."""
    if not any(isinstance(one, _FormerNames) for one in sys.meta_path):
        sys.meta_path.append(_FormerNames())
