"""The watches: our functions around torch's own, each of which tells one part of the hook what goes by.

A watch is put in place by a function that looks for its torch module among those imported; False says that it is not
there yet. It never imports torch, and what it wraps behaves as without it: same arguments, same result, same errors.

- ``calls``: what waits for other ranks (`Waits`, `Calls`)
- ``training``: backward passes, optimizers, DDP (`Backward`, `Ends`)
- ``pausing``: checkpoints, data, evaluation, compilers (`Pauses`, `Evaluation`)
- ``profiler``: NCCL's profiler plug-in, which is told the steps (`Steps`)
- ``groups``: the named process groups of the rank, once the first steps are over

Read `trainwarden.hook.watches.calls` first.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any, TypeVar

_F = TypeVar("_F", bound=Callable[..., Any])


def loaded(name: str) -> Any:
    """The module `name` if the process has imported it by now, else None."""
    return sys.modules.get(name)


def hide(function: _F) -> _F:
    """`function` with its code under a file name that torch.compile leaves alone."""
    target: Any = function
    target.__code__ = _renamed(target.__code__)
    return function


def _renamed(code: types.CodeType) -> types.CodeType:
    inner = tuple(_renamed(value) if isinstance(value, types.CodeType) else value for value in code.co_consts)
    return code.replace(co_filename="<frozen importlib trainwarden>", co_consts=inner)


def hide_all(*things: Any) -> None:
    """Hide functions, and every method and property of classes."""
    for thing in things:
        members = list(vars(thing).values()) if isinstance(thing, type) else [thing]
        for member in members:
            functions = (member.fget, member.fset) if isinstance(member, property) else (member,)
            for function in functions:
                if isinstance(function, types.FunctionType):
                    hide(function)
