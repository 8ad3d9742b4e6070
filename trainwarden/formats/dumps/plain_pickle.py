"""The plain data of a pickle, read without running any of it: dictionaries, lists, tuples, text, numbers.

A pickle is a program for a small stack machine. Of its instructions (CPython's Lib/pickletools.py names them) this
reader knows those that build plain data; the first one that would look something up, call it or set its state is
refused, so whoever writes the file can build nothing else. PyTorch's flight recorder writes protocol 2.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from trainwarden.errors import DataError

MAX_STEPS: Final = 20_000_000  # a record of 2,000 calls with 40 frames each takes about 1,000,000
MAX_MEMO: Final = 5_000_000
_MARK: Final = object()
_U16, _I32, _U32, _U64, _F64 = (struct.Struct(form) for form in ("<H", "<i", "<I", "<Q", ">d"))
_CONSTANTS: Final[dict[int, Any]] = {ord("N"): None, 0x88: True, 0x89: False, ord(")"): ()}
_FIXED: Final[dict[int, struct.Struct]] = {
    ord("K"): struct.Struct("<B"), ord("M"): _U16, ord("J"): _I32, ord("G"): _F64,
}  # fmt: skip
_TEXT: Final[dict[int, struct.Struct]] = {0x8C: struct.Struct("<B"), ord("X"): _U32, 0x8D: _U64}


def load_plain(data: bytes) -> Any:
    """What the pickle `data` holds.

    Raises
    ------
    DataError
        If it is cut short, too long, or would do anything but build plain data.

    Examples
    --------
    >>> import pickle
    >>> load_plain(pickle.dumps({"entries": [{"seq": 1, "ok": True}, (2.5, None)]}, protocol=2))
    {'entries': [{'seq': 1, 'ok': True}, (2.5, None)]}
    >>> load_plain(pickle.dumps(print, protocol=2))
    Traceback (most recent call last):
    trainwarden.errors.DataError: the pickle would do more than build plain data (instruction 0x63 at byte 2)
    """
    try:
        return _Machine(data).run()
    except (IndexError, struct.error) as error:
        raise DataError("the pickle is cut short or damaged") from error
    except (TypeError, AttributeError, KeyError, UnicodeDecodeError) as error:
        raise DataError(f"the pickle is damaged ({type(error).__name__})") from error


class _Machine:
    """One reading."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._plain: dict[int, Callable[[], None]] = {
            ord("}"): lambda: self._stack.append({}),
            ord("]"): lambda: self._stack.append([]),
            ord("("): lambda: self._stack.append(_MARK),
            ord("h"): lambda: self._stack.append(self._memo[self._byte()]),
            ord("j"): lambda: self._stack.append(self._memo[self._number(_U32)]),
            ord("q"): lambda: self._remember(self._byte()),
            ord("r"): lambda: self._remember(self._number(_U32)),
            0x94: lambda: self._remember(len(self._memo)),
            ord("u"): self._set_items,
            ord("s"): self._set_item,
            ord("e"): self._append_all,
            ord("a"): self._append_one,
            ord("t"): lambda: self._stack.append(tuple(self._above_mark())),
            0x85: lambda: self._tuple(1),
            0x86: lambda: self._tuple(2),
            0x87: lambda: self._tuple(3),
            0x8A: self._long,
            0x80: self._protocol,
            0x95: lambda: self._skip(8),  # the length of a frame
        }

    def run(self) -> Any:
        data, stack, plain = self._data, self._stack, self._plain
        for _ in range(MAX_STEPS):
            code = data[self._at]
            self._at += 1
            if code in plain:
                plain[code]()
            elif code in _TEXT:
                length = self._number(_TEXT[code])
                stack.append(self._take(length).decode("utf-8", "surrogatepass"))
            elif code in _FIXED:
                stack.append(self._number(_FIXED[code]))
            elif code in _CONSTANTS:
                stack.append(_CONSTANTS[code])
            elif code == ord("."):
                (result,) = stack[-1:] or (_MARK,)
                if result is _MARK or len(stack) != 1:
                    raise DataError("the pickle is damaged (it ends with an untidy stack)")
                return result
            else:
                where = f"instruction {code:#04x} at byte {self._at - 1}"
                raise DataError(f"the pickle would do more than build plain data ({where})")
        raise DataError(f"the pickle takes more than {MAX_STEPS} steps")

    # -- reading bytes

    def _take(self, length: int) -> bytes:
        end = self._at + length
        if end > len(self._data):
            raise IndexError
        found = self._data[self._at : end]
        self._at = end
        return found

    def _skip(self, length: int) -> None:
        self._take(length)

    def _byte(self) -> int:
        self._at += 1
        return self._data[self._at - 1]

    def _number(self, form: struct.Struct) -> Any:
        (value,) = form.unpack_from(self._data, self._at)
        self._at += form.size
        return value

    def _protocol(self) -> None:
        if self._byte() > 5:
            raise DataError("the pickle's protocol is not known")

    def _long(self) -> None:
        self._stack.append(int.from_bytes(self._take(self._byte()), "little", signed=True))

    # -- building

    def _remember(self, place: int) -> None:
        if len(self._memo) >= MAX_MEMO:
            raise DataError(f"the pickle remembers more than {MAX_MEMO} things")
        self._memo[place] = self._stack[-1]

    def _above_mark(self) -> list[Any]:
        stack = self._stack
        place = len(stack) - 1
        while stack[place] is not _MARK:
            place -= 1
            if place < 0:
                raise IndexError
        found = stack[place + 1 :]
        del stack[place:]
        return found

    def _tuple(self, size: int) -> None:
        if len(self._stack) < size:
            raise IndexError
        found = tuple(self._stack[-size:])
        self._stack[-size:] = [found]

    def _set_items(self) -> None:
        items = self._above_mark()
        if len(items) % 2:
            raise IndexError
        target = self._of(dict)
        for place in range(0, len(items), 2):
            target[_key(items[place])] = items[place + 1]

    def _set_item(self) -> None:
        value, key = self._stack.pop(), self._stack.pop()
        self._of(dict)[_key(key)] = value

    def _append_all(self) -> None:
        items = self._above_mark()
        self._of(list).extend(items)

    def _append_one(self) -> None:
        value = self._stack.pop()
        self._of(list).append(value)

    def _of(self, kind: type[Any]) -> Any:
        if not isinstance(self._stack[-1], kind):
            raise TypeError
        return self._stack[-1]


def _key(value: Any) -> str | int:
    """Text or a number: a key that is hashed by its content in constant depth."""
    if not isinstance(value, str | int):
        raise TypeError
    return value
