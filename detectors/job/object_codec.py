"""Objects in memory as plain data and back: what a snapshot holds of a job.

Nothing executes when it is read, and no attribute can be forgotten: all of an object's are taken, and an object takes
back what has exactly its own. Objects that hold others are filled in place; elements of containers are of the built-in
kinds, records, or of classes that the caller names.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar, Final, Protocol, get_args, get_origin, runtime_checkable

import msgspec
import numpy as np

from trainwarden.detectors.job.packed import pack, unpack
from trainwarden.errors import DetectorError
from trainwarden.records import Record
from trainwarden.settings import Config

_PLAIN_TYPES: Final = frozenset({type(None), bool, int, float, str, bytes})
_SEQUENCES: Final[dict[str, Callable[[Iterable[Any]], Any]]] = {
    "tuple": tuple, "list": list, "set": set, "frozenset": frozenset,
}  # fmt: skip
_TABLES: Final[dict[str, Callable[[Iterable[tuple[Any, Any]]], Any]]] = {
    "dict": dict, "OrderedDict": OrderedDict, "Counter": lambda pairs: Counter(dict(pairs)),
}  # fmt: skip
_NUMBERS: Final = "biuf"  # kinds of arrays


@runtime_checkable
class _Packs(Protocol):
    def state(self) -> bytes: ...
    def restore(self, state: bytes) -> None: ...


class ObjectCodec:
    """Turns objects into plain data and gives them back.

    Parameters
    ----------
    *kinds : type
        Classes whose instances may be elements of containers: dataclasses, structs, named tuples, or any other class
        that is made without arguments.

    Notes
    -----
    Settings are never kept, nor what the class attribute `NOT_KEPT` of an object's class names. A method `_restored`
    is called when an object is filled, to make anew what follows from the rest, or to refuse it.

    Examples
    --------
    >>> class Memory:
    ...     def __init__(self):
    ...         self.steps, self.seen = np.zeros(2), {}
    >>> memory, fresh = Memory(), Memory()
    >>> memory.steps[1], memory.seen[("a", 1)] = 7.0, {3}
    >>> ObjectCodec().load(fresh, ObjectCodec().dump(memory))
    >>> fresh.steps.tolist(), fresh.seen
    ([0.0, 7.0], {('a', 1): {3}})
    """

    def __init__(self, *kinds: type) -> None:
        self._kinds = {kind.__name__: kind for kind in kinds}
        self._records = {kind.__name__: kind for kind in Record.__subclasses__()}

    def dump(self, subject: object, leave: tuple[str, ...] = ()) -> dict[str, Any]:
        """All attributes of `subject` but those of `leave`.

        Raises
        ------
        TypeError
            If one is of a kind that cannot be kept.
        """
        return {name: self._out(getattr(subject, name)) for name in _kept(subject, leave)}

    def load(self, subject: object, plain: Mapping[str, Any], leave: tuple[str, ...] = ()) -> None:
        """Give `subject` what `dump` took of its like.

        Raises
        ------
        DetectorError
            If `plain` is damaged, or of a class that has other attributes.
        """
        wanted = _kept(subject, leave)
        if not isinstance(plain, Mapping) or set(wanted) != plain.keys():
            raise DetectorError(
                f"another version wrote the snapshot: {type(subject).__name__} has other attributes now"
            )
        for name in wanted:
            try:
                self._fill_one(subject, name, plain[name])
            except (TypeError, ValueError, LookupError, AttributeError, msgspec.ValidationError) as error:
                raise DetectorError(f"what was kept of {type(subject).__name__}.{name} is damaged: {error}") from error
        if (follow := getattr(subject, "_restored", None)) is not None:
            follow()

    def _fill_one(self, subject: object, name: str, plain: Any) -> None:
        own = getattr(subject, name)
        if isinstance(own, _Packs):
            own.restore(self._in(plain))
        elif _is_part(own):
            self.load(own, plain[1])
        else:
            value = self._in(plain)
            if isinstance(own, np.ndarray) and not _is_alike(value, own):
                raise DetectorError(f"the snapshot's array {type(subject).__name__}.{name} has another type or shape")
            setattr(subject, name, value)

    def _out(self, value: Any) -> Any:
        if isinstance(value, np.generic):
            return value.item()
        if type(value) in _PLAIN_TYPES:
            return value
        if isinstance(value, np.ndarray):
            if value.dtype.kind not in _NUMBERS:
                raise TypeError(f"arrays of {value.dtype} cannot be kept")
            return ["array", value.dtype.str, list(value.shape), value.tobytes()]
        name = type(value).__name__
        if name in _SEQUENCES:
            ordered = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
            return [name, self._each(ordered)]
        if name in _TABLES:
            return [name, list(zip(self._each(value), self._each(value.values()), strict=True))]
        return self._object(name, value)

    def _each(self, values: Collection[Any]) -> list[Any]:
        # Of large jobs most is long lists of plain numbers and words: one call for all of them.
        return list(values) if _PLAIN_TYPES.issuperset(map(type, values)) else [self._out(one) for one in values]

    def _object(self, name: str, value: Any) -> Any:
        if isinstance(value, deque):
            return ["deque", value.maxlen, self._each(value)]
        if isinstance(value, Record):
            return ["record", name, msgspec.to_builtins(value, builtin_types=(bytes,))]
        if name in self._kinds and isinstance(value, msgspec.Struct):  # log detectors hold some for each rank
            return ["kind", name, msgspec.to_builtins(value, builtin_types=(bytes,), enc_hook=_of_struct)]
        if name in self._kinds:
            return ["kind", name, self._each(value) if isinstance(value, tuple) else self._attributes(value)]
        if isinstance(value, _Packs):
            return value.state()
        if _is_part(value):
            return ["part", self.dump(value)]
        raise TypeError(f"{name} cannot be kept")

    def _attributes(self, value: Any) -> dict[str, Any]:
        names = _names(type(value))
        return {one: self._out(getattr(value, one)) for one in names} if names else self.dump(value)

    def _in(self, plain: Any) -> Any:
        if not isinstance(plain, list | tuple):
            return plain
        kind, *rest = plain
        if kind in _SEQUENCES:
            return _SEQUENCES[kind](self._in(one) for one in rest[0])
        if kind in _TABLES:
            return _TABLES[kind]((self._in(key), self._in(one)) for key, one in rest[0])
        if kind == "deque":
            return deque((self._in(one) for one in rest[1]), maxlen=rest[0])
        if kind == "record":
            return msgspec.convert(rest[1], self._records[rest[0]], builtin_types=(bytes,))
        if kind == "kind":
            return self._made(self._kinds[rest[0]], rest[1])
        if kind == "array":
            return _array(*rest)
        raise ValueError(f"unknown tag {kind!r}")

    def _made(self, kind: type[Any], plain: Any) -> Any:
        if issubclass(kind, tuple):
            return kind(*(self._in(one) for one in plain))
        names = _names(kind)
        if not names:
            fresh = kind()
            self.load(fresh, plain)
            return fresh
        config = getattr(kind, "__struct_config__", None)
        if plain.keys() - names or (plain.keys() != set(names) and not (config and config.omit_defaults)):
            raise ValueError(f"it is of another version: {kind.__name__} has other fields now")
        if not is_dataclass(kind):
            return msgspec.convert(plain, kind, builtin_types=(bytes,), dec_hook=_to_deque)
        one = object.__new__(kind)  # some of its fields may be none of its arguments
        for name in names:
            object.__setattr__(one, name, self._in(plain[name]))
        return one


class WholeMemory:
    """A detector whose state is all that it remembers: every attribute but its settings.

    Attributes
    ----------
    HELD : tuple of type
        Classes of the objects that its containers hold, see `ObjectCodec`.
    NOT_KEPT : tuple of str
        Attributes that follow from the settings or from the rest of the memory.

    Examples
    --------
    >>> class Counts(WholeMemory):
    ...     def __init__(self):
    ...         self.lines = 0
    >>> old, new = Counts(), Counts()
    >>> old.lines = 3
    >>> new.restore(old.state())
    >>> new.lines
    3
    """

    HELD: ClassVar[tuple[type, ...]] = ()
    NOT_KEPT: ClassVar[tuple[str, ...]] = ()

    def state(self) -> bytes:
        """See `trainwarden.detectors.protocol.Detector`."""
        return pack(self._whose_memory, ObjectCodec(*self.HELD).dump(self))

    def restore(self, state: bytes) -> None:
        """See `trainwarden.detectors.protocol.Detector`."""
        plain, _ = unpack(self._whose_memory, state)
        ObjectCodec(*self.HELD).load(self, plain)

    @property
    def _whose_memory(self) -> str:
        return type(self).__name__


def _of_struct(value: Any) -> Any:
    """A value of a struct's field that msgspec does not know."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, deque) and value.maxlen is None:
        return list(value)
    raise TypeError(f"{type(value).__name__} cannot be kept in a struct")


def _to_deque(kind: type, value: Any) -> Any:
    if not issubclass(get_origin(kind) or kind, deque):
        raise TypeError(f"{kind} cannot be kept in a struct")
    return deque(msgspec.convert(value, list[get_args(kind)[0]]))  # type: ignore[misc] # one known at run time


def _array(dtype: str, shape: list[int], data: bytes) -> Any:
    if np.dtype(dtype).kind not in _NUMBERS:
        raise ValueError(f"arrays of {dtype} are not kept")
    return np.frombuffer(data, dtype=dtype).reshape(shape).copy()


def _is_part(value: object) -> bool:
    """Whether `value` is an object of ours that is held by another for good."""
    return type(value).__module__.startswith("trainwarden.detectors.") and hasattr(value, "__dict__")


def _kept(subject: object, leave: tuple[str, ...]) -> list[str]:
    left = {*leave, *getattr(subject, "NOT_KEPT", ())}
    return [name for name, value in vars(subject).items() if name not in left and not isinstance(value, Config)]


def _is_alike(value: Any, own: Any) -> bool:
    """Whether `value` may take the place of an array as it was made, of which sides without length grow."""
    if not isinstance(value, np.ndarray) or value.dtype != own.dtype or value.ndim != own.ndim:
        return False
    return all(have in (0, length) for have, length in zip(own.shape, value.shape, strict=True))


def _names(kind: type[Any]) -> tuple[str, ...]:
    if is_dataclass(kind):
        return tuple(field.name for field in fields(kind))
    return tuple(getattr(kind, "__struct_fields__", ()))
