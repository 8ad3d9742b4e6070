"""The ring in which the keepers of a round copy checkpoints, and the authority by which they know each other.

An authority's key exists in this process alone. A keeper makes its own key and sends the request for a certificate with
its node's beats; another service makes another authority, and all keepers get new certificates.
"""

from __future__ import annotations

import datetime
import ipaddress
import logging
import re
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from trainwarden.actions.launchers.torchrun.members import Member
from trainwarden.actions.launchers.torchrun.messages import KeeperAt, Ring
from trainwarden.actions.launchers.torchrun.table import JobTable

if TYPE_CHECKING:
    from cryptography import x509

log = logging.getLogger("trainwarden.rendezvous")
_DAY: Final = datetime.timedelta(days=1)
_LIFE: Final = 7 * _DAY  # a keeper gets a new certificate after half of it
_AUTHORITY_LIFE: Final = 3650 * _DAY  # it ends with this process
_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")  # no wildcard: it would stand for other nodes too


class Rings:
    """The ring of one job's round, and the certificates of its nodes."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._authority: _Authority | None = None
        self._signed: dict[str, tuple[str, str, datetime.datetime]] = {}  # by node: request, certificate, when
        self._said = ""
        self._known: tuple[int, dict[str, Member], tuple[tuple[str, str, int], ...]] | None = None

    def look_again(self) -> None:
        """An agent has come, or its keeper is another."""
        self._known = None

    def of(self, table: JobTable, life: str) -> Ring | None:
        """What the keeper beside the agent `life` is to know; None while a node of the round has no keeper yet."""
        memory = table.memory
        member = table.members.get(life)
        if member is None or member.beat.keeper is None or memory.round != memory.target:
            return None
        if self._known is None or self._known[0] != memory.serial:
            self._known = (memory.serial, *_seated(table))
            names = {one.node for one in self._known[1].values()}
            self._signed = {node: signed for node, signed in self._signed.items() if node in names}
        _, seated, nodes = self._known
        if life not in seated or not nodes:
            return None
        certificate = self._certificate(member, member.beat.keeper)
        if certificate is None or self._authority is None:
            return None
        return Ring(round=memory.round, nodes=nodes, ca=self._authority.pem, certificate=certificate)

    def _certificate(self, member: Member, keeper: KeeperAt) -> str | None:
        known, now = self._signed.get(member.node), _now()
        if known is not None and known[0] == keeper.request and now - known[2] < _LIFE / 2:
            return known[1]
        try:
            self._authority = self._authority or _Authority(self._job)
            certificate = self._authority.sign(keeper.request, member.node)
        except Exception as error:  # noqa: BLE001 - by a stranger's request: what the library raises is not one tree
            if self._said != str(error):
                self._said = str(error)
                log.warning("no certificate", extra={"fields": {"node": member.node, "why": self._said[:300]}})
            return None
        self._signed[member.node] = (keeper.request, certificate, now)
        return certificate


def _seated(table: JobTable) -> tuple[dict[str, Member], tuple[tuple[str, str, int], ...]]:
    """The agents of the round, and the ring of their keepers, if each node has one."""
    seated = {one.life: one for one in table.seated.values()}
    keepers = {one.node: (one.host, one.beat.keeper) for one in seated.values() if one.beat.keeper is not None}
    if len(keepers) < len(table.memory.roster):
        return seated, ()
    order = ring_order([(node, at.domain) for node, (_, at) in keepers.items()])
    return seated, tuple((node, keepers[node][0], keepers[node][1].port) for node in order)


class _Authority:
    """Signs for names that the service has checked itself; of a request it believes the public key alone."""

    def __init__(self, job: str) -> None:
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"keepers of {job}"[:64])])
        made = self._builder(self._name, self._key.public_key(), _AUTHORITY_LIFE)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        self.pem = self._signed(made)

    def sign(self, request: str, node: str) -> str:
        """The certificate of `node`'s keeper.

        Raises
        ------
        ValueError
            If it is no request for an elliptic curve's key, or not signed by that key, or `node` is no plain name.
        """
        from cryptography import x509
        from cryptography.hazmat.primitives.asymmetric import ec

        if _NAME.fullmatch(node) is None:
            raise ValueError("the node's name has other characters than A-Z, a-z, 0-9, '.', '_' and '-', or over 128")
        asked = x509.load_pem_x509_csr(request.encode())
        key = asked.public_key()
        if not isinstance(key, ec.EllipticCurvePublicKey) or not asked.is_signature_valid:
            raise ValueError("the keeper's request for a certificate is not signed by a key of an elliptic curve")
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, node[:64])])
        made = self._builder(name, key, _LIFE)
        made = made.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        try:
            called: x509.GeneralName = x509.IPAddress(ipaddress.ip_address(node))  # TLS compares it with nothing else
        except ValueError:
            called = x509.DNSName(node)
        return self._signed(made.add_extension(x509.SubjectAlternativeName([called]), critical=False))

    def _builder(self, name: x509.Name, key: object, life: datetime.timedelta) -> x509.CertificateBuilder:
        from cryptography import x509

        now = _now()
        return (
            x509.CertificateBuilder().subject_name(name).issuer_name(self._name).public_key(key)  # type: ignore[arg-type]
            .serial_number(x509.random_serial_number()).not_valid_before(now - _DAY)  # clocks stand apart
            .not_valid_after(now + life)
        )  # fmt: skip

    def _signed(self, made: x509.CertificateBuilder) -> str:
        from cryptography.hazmat.primitives import hashes, serialization

        return made.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)


def ring_order(nodes: Sequence[tuple[str, str]]) -> list[str]:
    """Nodes with their failure domains as a ring: no neighbours of one domain, where that is possible.

    Without domains the order is the given one. With them the largest goes to every other place first, as there are few
    places that keep it apart.

    Examples
    --------
    >>> ring_order([("a", ""), ("b", ""), ("c", "")])
    ['a', 'b', 'c']
    >>> ring_order([("a", "r1"), ("b", "r1"), ("c", "r2"), ("d", "r2"), ("e", "r3")])
    ['a', 'd', 'b', 'e', 'c']
    """
    sizes = Counter(domain for _, domain in nodes)
    if len(sizes) < 2:
        return [node for node, _ in nodes]
    first = {domain: number for number, (_, domain) in reversed(list(enumerate(nodes)))}
    by_size = sorted(nodes, key=lambda one: (-sizes[one[1]], first[one[1]]))
    places = [*range(0, len(nodes), 2), *range(1, len(nodes), 2)]
    return [node for _, node in sorted(zip(places, (node for node, _ in by_size), strict=True))]
