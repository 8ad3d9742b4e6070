"""Brings the hook in by PYTHONPATH where torch does not call our entry point.

That is torch before 2.5, or a Python that has not installed trainwarden. Once ``import torch`` is done the
hook is loaded from beside this folder, where its package lies or, in an image, the one file made from it
(``trainwarden_hook.py``), so nothing of ours need be importable. The next ``sitecustomize`` on the path,
which this file hides, is run as if this one were not there. Runs on Python 3.9 and newer.
"""

# Every start of Python pays for this file, and pathlib would be most of its cost.
# ruff: noqa: PTH100, PTH110, PTH118, PTH120
from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import sys
import types

_HERE = os.path.dirname(os.path.abspath(__file__))


def _load_hook() -> None:
    """Load the hook beside this folder, unless torch has done it, and let it look at the torch just imported."""
    try:
        if "_trainwarden_hook" in vars(sys):
            return
        beside = os.path.dirname(_HERE)
        path = os.path.join(beside, "hook", "__init__.py")
        if not os.path.exists(path):
            path = os.path.join(beside, "trainwarden_hook.py")
        folder = [os.path.dirname(path)] if path.endswith("__init__.py") else None  # None: no package
        spec = importlib.util.spec_from_file_location(
            "_trainwarden_injected_hook", path, submodule_search_locations=folder
        )
        if spec is None or spec.loader is None:
            return
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # its NamedTuples, and a package's own imports, look it up
        spec.loader.exec_module(module)
        module.autoload()
    except Exception:  # noqa: BLE001, S110 - the hook must never break somebody's import of torch
        pass


class _TorchWatcher:
    """A finder that finds nothing itself; it has the real loader of torch tell when it is done."""

    def __init__(self) -> None:
        self.busy = False

    def find_spec(
        self, name: str, path: object = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch" or self.busy:
            return None
        self.busy = True
        try:
            return self._telling(importlib.util.find_spec(name))
        except Exception:  # noqa: BLE001 - then it is imported as if we were not there
            return None
        finally:
            self.busy = False

    def _telling(self, spec: importlib.machinery.ModuleSpec | None) -> importlib.machinery.ModuleSpec | None:
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                _load_hook()

            vars(spec.loader)["exec_module"] = exec_module
        return spec


def _run_next() -> None:
    """Run the sitecustomize that comes after this one on the path, under its own name."""
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != _HERE]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is None or spec.loader is None:
        return
    module = importlib.util.module_from_spec(spec)
    sys.modules["sitecustomize"] = module
    spec.loader.exec_module(module)


def come_in() -> None:
    """Have the hook come with torch, or now where torch has come before (`trainwarden.torchrun.rank`)."""
    if "torch" in sys.modules:
        _load_hook()
    else:
        sys.meta_path.insert(0, _TorchWatcher())


def _end_with_torchrun() -> None:
    """Have the kernel end this rank with its torchrun, which else would leave it behind (`trainwarden.torchrun`)."""
    try:
        if os.environ.get("TRAINWARDEN_ENDS_WITH") == str(os.getppid()):
            import ctypes

            ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # PR_SET_PDEATHSIG (linux/prctl.h), SIGKILL
    except Exception:  # noqa: BLE001, S110 - then it is left behind
        pass


if __name__ == "sitecustomize":
    _end_with_torchrun()
    if os.environ.get("TRAINWARDEN_HOOK_DIR"):
        come_in()
    _run_next()
