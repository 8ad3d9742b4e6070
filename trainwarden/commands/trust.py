"""Whether a word on the bus counts: signed by a trusted key that may say it, fresh, and said for the first time.

All that is judged by lies in the record, its place and the bus's time of it, so whoever reads the topic, whenever,
comes to the same answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from operator import itemgetter
from typing import Final, Literal, Self

import msgspec

from trainwarden.commands.keys import Right, Signer, Trusted, is_signed_by, trusted_of
from trainwarden.errors import ConfigError
from trainwarden.protocols import Message
from trainwarden.records import CommandRecord
from trainwarden.settings import Settings
from trainwarden.topics import COMMANDS

FRESH_S: Final = 300.0  # between signing and the bus's stamp: what Slack, and we for webhooks, take as a limit
MAY: Final[Mapping[str, Right]] = {
    "approve": "approve",
    "deny": "approve",
    "stop": "stop",
    "resume": "stop",
    "latch": "latch",
}
"""What one needs for a kind of command; every other kind, also one that comes later, needs ``act``."""
SHOWN: Final = 80  # characters of a name that anybody may have written

Reason = Literal[
    "unsigned", "unknown_key", "forged", "expired", "not_allowed", "wrong_name", "misplaced", "stale", "replayed"
]


class Refusal(msgspec.Struct, frozen=True):
    """Why a word does not count: for counters, and in one sentence."""

    reason: Reason
    why: str


class Trust:
    """Whose words count; without `keys` everybody's, as on a bus that only its owner may write to.

    Examples
    --------
    >>> ann = Signer("ann", bytes(32))
    >>> trust = Trust([Trusted("ann", frozenset({"stop"}), ann.public)])
    >>> stop = CommandRecord(id="c", job="j", at_s=1.0, kind="stop", by="ann")
    >>> said = Message("commands", 0, 7, 2.0, "j", ann.sign(stop, 1.0))
    >>> trust.refusal(said) is None, trust.refusal(msgspec.structs.replace(said, offset=8)).reason
    (True, 'replayed')
    >>> trust.doubt(stop).why, Trust().doubt(stop) is None
    ('it is not signed', True)
    """

    def __init__(self, keys: Iterable[Trusted] = ()) -> None:
        self._keys: dict[str, list[Trusted]] = defaultdict(list)  # of one name there may be an old one and a new one
        for key in keys:
            self._keys[key.name].append(key)
        self._places: dict[tuple[str, str], tuple[int, int]] = {}  # of each signature's number, the first

    @classmethod
    def of(cls, path: str | None) -> Self:
        """The trust that the file at `path` gives; None: everybody's word counts.

        Raises
        ------
        ConfigError
            If the file cannot be used.
        """
        return cls() if path is None else cls(trusted_of(path))

    @property
    def asks(self) -> bool:
        """Whether words have to be signed."""
        return bool(self._keys)

    def doubt(self, command: CommandRecord) -> Refusal | None:
        """Why `command` would not count, wherever it stood; None if it would."""
        if not self._keys:
            return None
        signature = command.signature
        if signature is None:
            return Refusal("unsigned", "it is not signed")
        name = signature.by[:SHOWN]
        known = self._keys.get(signature.by)
        if known is None:
            return Refusal("unknown_key", f"no key of '{name}' is trusted")
        key = next((one for one in known if is_signed_by(command, one.public)), None)
        if key is None:
            return Refusal("forged", f"the signature is not that of '{name}'")
        if key.until_s is not None and signature.at_s > key.until_s:
            return Refusal("expired", f"that key of '{name}' is out of use")
        right = MAY.get(command.kind, "act")
        if right not in key.rights:
            return Refusal("not_allowed", f"'{name}' may not say {command.kind}: it takes the right '{right}'")
        if command.by != signature.by and "relay" not in key.rights and command.kind != "latch":
            said = f"'{name}' signed a word of '{command.by[:SHOWN]}' and may not speak for others"
            return Refusal("wrong_name", said)
        return None

    def refusal(self, message: Message) -> Refusal | None:
        """Why the word that `message` carries does not count; None if it does, or is no command."""
        command = message.record
        if not self._keys or not isinstance(command, CommandRecord):
            return None
        if (doubt := self.doubt(command)) is not None or (signature := command.signature) is None:
            return doubt
        if message.key != command.job or not message.stamped:
            # Under another key it lies where others of its job may overtake it; a writer's own stamp proves no time.
            said = "it lies under another job's key" if message.stamped else "the bus does not stamp commands itself"
            return Refusal("misplaced", said)
        # A stamp that never falls stays where a clock once stood; how old a word is, the clock at its writing tells.
        stamp_s = message.time_s if message.clock_s is None else message.clock_s
        late_s = stamp_s - signature.at_s
        if abs(late_s) > FRESH_S and not self._at_any_time(command, stamp_s):
            when = f"{late_s:.0f} s before" if late_s > 0 else f"{-late_s:.0f} s after"
            return Refusal("stale", f"it was signed {when} it came to the bus; {FRESH_S:.0f} s are allowed")
        place = message.partition, message.offset
        if self._places.setdefault((signature.by, signature.nonce), place) != place:
            return Refusal("replayed", f"somebody has put a word of '{signature.by}' on the bus once more")
        return None

    def _at_any_time(self, command: CommandRecord, stamp_s: float) -> bool:
        """Whether `command` counts however late: an engine's latch, which waits while the bus is away, and a stop.

        No clock may stand between a person and a stop. A replay is known by its nonce; a key that is out of use by
        then has to be fresh.
        """
        if command.kind == "latch":
            return True
        signature = command.signature
        if command.kind != "stop" or signature is None:
            return False
        keys = (key for key in self._keys.get(signature.by, ()) if is_signed_by(command, key.public))
        return any(key.until_s is None or stamp_s <= key.until_s for key in keys)


def in_order(messages: Iterable[Message]) -> list[Message]:
    """`messages` by the bus's time, and of one partition as they lie there: a replay elsewhere comes after its word."""
    timed: list[tuple[float, Message]] = []
    reached_s: dict[int, float] = {}
    for message in messages:
        at_s = max(message.time_s, reached_s.get(message.partition, message.time_s))  # a broker's clock may be set
        reached_s[message.partition] = at_s
        timed.append((at_s, message))
    return [message for _, message in sorted(timed, key=itemgetter(0))]


def unsigned_text(settings: Settings) -> str | None:
    """What to say where whoever may write to a bus that others reach too may command the engine; else None."""
    if settings.commands.trusted is not None or settings.bus.startswith("embedded:"):
        return None
    return f"unsigned: whoever may write to {COMMANDS.name} can approve and stop (commands.trusted; docs/security.md)"


def signed(command: CommandRecord, signer: Signer | None, trust: Trust, now_s: float) -> CommandRecord:
    """`command` as it should go to the bus: signed by `signer`, if there is one.

    Raises
    ------
    ConfigError
        If it would not count.
    """
    said = command if signer is None else signer.sign(command, now_s)
    if (doubt := trust.doubt(said)) is not None:
        hint = "; sign with --key FILE or commands.key" if signer is None else ""
        raise ConfigError(f"{command.kind}: the engine would not hear it: {doubt.why}{hint}")
    return said
