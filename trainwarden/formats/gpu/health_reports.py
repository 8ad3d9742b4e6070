"""Format: reports that judge GPUs and ports themselves: dcgmi diag and health, nvidia-smi nvlink, mlxlink, ibdiagnet.

Each becomes lines ``health check: DEVICE PART failed: words``, which rules of logs know, and one for each that passed.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import msgspec

from trainwarden.errors import DataError
from trainwarden.formats.collected import is_node
from trainwarden.formats.protocol import NEVER, SURE, Found
from trainwarden.formats.source import Source
from trainwarden.formats.verdicts import Verdict, found_of_verdicts

_DIAG: Final = ("DCGM Diagnostic", "DCGM GPU Diagnostic")
_PASSED: Final = ("pass", "healthy")
_UNTESTED: Final = ("skip", "not run", "notrun")  # every other status is no pass: a test that ended in an error too
_MOST_WORDS: Final = 4_000  # characters of one warning that are looked at for its devices
_WORDS_OF: Final = ("warning", "info", "error")  # begin a row of words below a result
_LEAST_GPUS: Final = 3  # of fewer no majority says which links are to be up
# Which part of a device a test or its words are about; the first that fits.
_PARTS: Final = (
    (re.compile(r"(?i)\bnv-?link|nvswitch|fabric"), "nvlink"),
    (re.compile(r"(?i)memory|\becc\b|\bdbe\b|\bsbe\b|page retire|row remap|memtest|framebuffer"), "memory"),
    (re.compile(r"(?i)\bpcie?\b|replay"), "pcie"),
    (re.compile(r"(?i)thermal|temperature|power|throttl|clock|pulse"), "clocks"),
)
_ROW: Final = re.compile(r"\|([^|\n]{0,60})\|([^|\n]{0,120})\|\s*$")
_WORD: Final = r"((?i:pass|fail|skip|warn)[a-z]{0,8}\b|[A-Za-z]{2,20}(?:[ _][A-Za-z]{2,20})?(?= - (?:GPU|All)|$))"
_VERDICT: Final = re.compile(_WORD + r"(?: - (?:GPUs?: ([0-9, ]{1,80})|(All)))?")
_OF_GPU: Final = re.compile(r"GPU ?([0-9]{1,3})(?:: ?|:? ?(?=Pass|Fail|Skip|Warn))" + _WORD)
_METADATA: Final = re.compile(
    r"(?m)^[|+]-{2,20} {1,4}Metadata [^\n]*\n(?:\| (?! *-)[^\n]*\n)*|^\| Diagnostic +\| Result +\|$"
)
_NUMBER: Final = re.compile(r"[0-9]{1,3}$")
_HEALTH: Final = re.compile(r"(?:GPU ID: |-> )([0-9]{1,3})\s*$")
_ABOUT: Final = re.compile(r"\bGPU ?#?([0-9]{1,3})\b")
_BLIND: Final = "all links are inActive"  # what nvidia-smi says in place of the links of a GPU
_LINKS: Final = re.compile(r"GPU ([0-9]{1,3}): [^\n]{1,80} \(UUID: ")
_LINK: Final = re.compile(
    r"\s{1,8}Link ([0-9]{1,3}): "
    r"(?:(Replay|Recovery|CRC)[A-Za-z ]{0,24}Errors?: ([0-9]{1,20})|<?(inactive)>?|[0-9.]{1,8} GB/s)"
)
_CARD: Final = re.compile(r"(mlx[0-9]_(?:ib|bond_)?[0-9]{1,3})")
_MLXLINK: Final = re.compile(
    r"(?m)^(State|Physical state|Recommendation|Status Opcode|Effective Physical BER)\s{1,60}: ([^\n]{1,200})$"
)
_BER: Final = re.compile(r"[0-9.]{1,8}E-?[0-9]{1,4}")
_MOST_BER: Final = 1e-12  # after correction, as Ethernet (IEEE 802.3) asks of a link
_IBDIAG: Final = re.compile(r"(?m)^-([IWE])- ([^\n]{1,300})")
_STAGE: Final = re.compile(r"(?m)^-[IWE]- ([A-Z][A-Za-z /]{2,40}?)\s{2,60}([0-9]{1,6})\s{1,40}([0-9]{1,6})(?=\s|$)")
_HOST_OF: Final = re.compile(r"([A-Za-z0-9][A-Za-z0-9.-]{0,62})[ /]mlx[0-9]_")
_PROBLEM: Final = re.compile(r"(?i)overflow|error|fail|down|mismatch|exceed|bad")


class HealthReport:
    """One report a file; it carries no time, so that it counts from the file's last change."""

    name = "health report"

    def sniff(self, name: str, head: str) -> float:
        """By the title of each."""
        del name
        start = head[:6_000]
        if start.lstrip()[:1] == "{":
            return SURE if any(f'"{word}"' in start for word in _DIAG) else NEVER
        told = (
            "Successfully ran diagnostic" in start or "Health Monitor Report" in start
            or ("Operational Info" in start and "Physical state" in start)
            or ("IBDIAG" in start.upper()[:400] and _IBDIAG.search(head) is not None)
            or (_LINKS.match(start) is not None and _LINK.search(start) is not None)
        )  # fmt: skip
        return SURE if told else NEVER

    def read(self, source: Source, columns: Mapping[str, str]) -> Found:
        """See `trainwarden.formats.protocol.Format`."""
        del columns
        notes: list[str] = []
        verdicts = list(dict.fromkeys(_verdicts(source.text(), source, notes)))
        if not verdicts:
            why = "; ".join(notes) or "it names no test with its result: give the whole report"
            raise DataError(f"{source.name}: {why}")
        found = found_of_verdicts(source, self.name, verdicts)
        found.notes += notes
        return found


def _verdicts(text: str, source: Source, notes: list[str]) -> Iterator[Verdict]:
    if text.lstrip()[:1] == "{":
        yield from _of_json(text, source.name)
    elif "Health Monitor Report" in text[:6_000]:
        yield from _of_health(text)
    elif "Successfully ran diagnostic" in text[:6_000]:
        yield from _of_diag(text)
    elif "Operational Info" in text[:6_000]:
        yield from _of_mlxlink(text, source.path.name)
    elif _LINKS.match(text):
        yield from _of_links(text, notes)
    else:
        yield from _of_ibdiagnet(text, notes)


def _part(words: str) -> str:
    return next((part for pattern, part in _PARTS if pattern.search(words)), "gpu")


def _failed(status: str) -> bool:
    bare = status.strip().lower().replace("_", " ")
    return bool(bare) and not bare.startswith((*_PASSED, *_UNTESTED))


def _result(device: str, test: str, status: str, words: str = "") -> Verdict | None:
    """A verdict; None of a test that was skipped, which says nothing."""
    if _failed(status):
        said = f"{test}: {words}" if words else test
        return Verdict(device, _part(f"{test} {words}"), said[:400])
    return Verdict(device, "", None) if status.strip().lower().startswith(_PASSED) else None


# -- dcgmi diag


def _of_json(text: str, name: str) -> Iterator[Verdict]:
    """Of DCGM 2 to 4: tests within categories, a result for each GPU of each."""
    try:
        whole = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DataError(f"{name} is not the JSON that it looks like: {error}") from error
    for test in _tests(whole):
        for one in test.get("results") or []:
            if not isinstance(one, dict):
                continue
            words = ("; ".join(_words(one.get("warnings"))) or str(one.get("info", "")))[:_MOST_WORDS]
            for device in _devices(one, words):
                found = _result(device, str(test.get("name", ""))[:100], str(one.get("status") or ""), words[:400])
                if found is not None:
                    yield found


def _devices(one: Mapping[str, Any], words: str) -> list[str]:
    """The GPUs that a result is of; the node where it is of something else, or of nothing that is named."""
    number = one.get("entity_id", one.get("gpu_id", one.get("gpu_ids", "")))
    if "entity_id" in one and str(one.get("entity_group") or "GPU").upper() != "GPU":
        return ["node"]
    listed = number if isinstance(number, list) else str(number).split(",")
    numbers = [str(word).strip() for word in listed]
    if not all(_NUMBER.match(word) for word in numbers):
        numbers = _ABOUT.findall(words)[:1]
    return [f"gpu{word}" for word in dict.fromkeys(numbers)] or ["node"]


def _tests(one: Any, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    if isinstance(one, list):
        for inner in one:
            yield from _tests(inner, depth)
    elif isinstance(one, dict) and depth < 6:
        if isinstance(one.get("results"), list) and "name" in one:
            yield one
            return
        for inner in one.values():
            yield from _tests(inner, depth + 1)


def _words(warnings: Any) -> Iterator[str]:
    for one in warnings if isinstance(warnings, list) else [warnings]:
        if one:
            yield str(one.get("warning", one)) if isinstance(one, dict) else str(one)


def _of_diag(text: str) -> Iterator[Verdict]:
    """Rows of the table; words of a warning stand below the result, and may go on over several rows."""
    test, results, words = "", list[tuple[str, str]](), ""
    for left, right in [*_table(_METADATA.sub("", text)), ("end", "Pass")]:
        if left.lower().startswith(_WORDS_OF) or (not left and words and not _OF_GPU.match(right)):
            about = f"{left.partition(':')[2].strip()}: " if ":" in left else ""
            if len(words) < _MOST_WORDS and not left.lower().startswith("info"):
                words += f" {about}{right}"
            continue
        if left:
            yield from _ended(test, results, words)
            test, results, words = left, [], ""
        if (own := _OF_GPU.match(right)) is not None:
            results.append((f"gpu{own[1]}", own[2]))
        elif (verdict := _VERDICT.match(right)) is not None:
            listed = [one.strip() for one in (verdict[2] or "").split(",") if one.strip()]
            results += [(f"gpu{one}", verdict[1]) for one in listed] or [("node", verdict[1])]


def _ended(test: str, results: Iterable[tuple[str, str]], words: str) -> Iterator[Verdict]:
    results = list(results)
    named = [one for one in results if one[0] != "node"]
    about = {f"gpu{number}" for number in _ABOUT.findall(words)}
    words = words.strip()[:400]
    for device, status in named or results:
        if device == "node" and about and _failed(status):
            yield from (Verdict(one, _part(f"{test} {words}"), f"{test}: {words}"[:400]) for one in sorted(about))
        elif (found := _result(device, test, status, words)) is not None:
            yield found


def _table(text: str) -> Iterator[tuple[str, str]]:
    for line in text.split("\n"):
        if (row := _ROW.match(line)) is not None and not set(row[1]) <= set("-= "):
            yield row[1].strip(), row[2].strip()
        elif row is not None and not row[1].strip():
            yield "", row[2].strip()


# -- dcgmi health


def _of_health(text: str) -> Iterator[Verdict]:
    device, status, words = "node", "", ""
    for left, right in [*_table(text), ("GPU ID: 0", "")]:
        gpu = _HEALTH.search(left)
        overall = "Overall Health" in left or "Overall Health" in right
        if gpu is None and not overall:
            if _failed(status) and len(words) < _MOST_WORDS:
                words += f" {left.removeprefix('-> ').strip()} {right}"
            continue
        found = _result(device, "dcgmi health", status, " ".join(words.split()))
        if found is not None and (device != "node" or found.failed is None):
            yield found
        device = f"gpu{gpu[1]}" if gpu is not None else "node"
        status, words = right.removeprefix("Overall Health:").strip(), ""


# -- links


def _of_links(text: str, notes: list[str]) -> Iterator[Verdict]:
    """A link that is inactive while it is up on most other GPUs, or has been replayed or recovered."""
    gpu, crc = "", set[str]()
    dead = _dead(text)
    counts = dict[str, Counter[str]]()
    gpus = dict[str, None]()
    for line in text.split("\n"):
        if (begins := _LINKS.match(line)) is not None:
            gpu = f"gpu{int(begins[1])}"
            gpus[gpu] = None
        elif (link := _LINK.match(line)) is not None and link[2] == "CRC":
            crc |= {gpu} if int(link[3]) else set()
        elif link is not None and link[2]:
            counts.setdefault(gpu, Counter())[link[1]] += int(link[3])
    if crc:  # totals since the driver was loaded: the limit that we have is of a minute (detectors/devices/limits.toml)
        notes.append(f"CRC errors of NVLinks are totals and not judged: {', '.join(sorted(crc)[:8])}")
    if len(gpus) < _LEAST_GPUS:
        notes.append(f"links of fewer than {_LEAST_GPUS} GPUs cannot be compared")
    some = len(gpus) >= _LEAST_GPUS and _LINK.search(text) is not None
    of_link = Counter(link for _, link in dead)
    for gpu in gpus:
        alone = [link for link in sorted(of_link) if (gpu, link) in dead and of_link[link] * 2 < len(gpus)]
        replayed = [link for link, count in counts.get(gpu, Counter()).items() if count]
        if alone:
            yield Verdict(gpu, "nvlink", f"NVLink {', '.join(alone)} is inactive and up on most other GPUs")
        elif replayed:
            yield Verdict(gpu, "nvlink", f"NVLink {', '.join(replayed)} was replayed or recovered after errors")
        elif some and gpu not in crc:
            yield Verdict(gpu, "", None)


def _dead(text: str) -> set[tuple[str, str]]:
    """GPUs and numbers of links that are inactive: all those of other GPUs where nvidia-smi names none of its own."""
    gpu, dead = "", set[tuple[str, str]]()
    links, blind = set[str](), set[str]()
    for line in text.split("\n"):
        if (begins := _LINKS.match(line)) is not None:
            gpu = f"gpu{int(begins[1])}"
        elif (link := _LINK.match(line)) is not None:
            links.add(link[1])
            dead |= {(gpu, link[1])} if link[4] else set()
        elif _BLIND in line:
            blind.add(gpu)
    return dead | {(one, link) for one in blind for link in links}


def _of_mlxlink(text: str, file: str) -> Iterator[Verdict]:
    """One report or several; of several each is of the port that the text before it names."""
    pieces = text.split("Operational Info")
    for number, (before, piece) in enumerate(itertools.pairwise(pieces), 1):
        told = dict(_MLXLINK.findall(piece))
        cards = _CARD.findall(before[-400:]) or (_CARD.findall(file) if len(pieces) == 2 else [])
        device = cards[-1] if cards else "port" if len(pieces) == 2 else f"port{number}"
        if "State" not in told:
            continue
        if told["State"].strip().lower() in ("active", "physical linkup", "linkup"):
            ber = told.get("Effective Physical BER", "").strip()
            bad = _BER.fullmatch(ber) is not None and float(ber) > _MOST_BER
            why = f"effective bit error ratio {ber}, after correction"
            yield Verdict(device, "port_errors" if bad else "", why if bad else None)
        else:
            why = told.get("Recommendation", "").strip()
            physical = told.get("Physical state", "").strip()
            yield Verdict(device, "port", f"link is {told['State'].strip()}, {physical}: {why}")


def _of_ibdiagnet(text: str, notes: list[str]) -> Iterator[Verdict]:
    """Errors, and warnings about a port, with the lines below that name its counters; else the summary of stages."""
    pieces = list(_IBDIAG.finditer(text))
    failed, passed = list[Verdict](), list[Verdict]()
    for match, after in zip(pieces, [*pieces[1:], None], strict=False):
        below = " ".join(text[match.end() : after.start() if after else None].split())[:300]
        card = _CARD.search(match[2])
        if card is not None and match[1] in "WE" and _PROBLEM.search(f"{match[2]} {below}"):
            host = _HOST_OF.search(match[2])
            node = host[1] if host is not None and is_node(host[1]) else None
            failed.append(Verdict(card[1], "port_errors", f"{match[2].strip()} {below}"[:400], node))
        elif match[1] == "E" and "finished with errors" not in match[2]:
            failed.append(Verdict("fabric", "port_errors", match[2].strip()))
        elif match[1] == "I":
            passed.append(Verdict("fabric", "", None))
    stages = [] if failed else [(name.strip(), int(warned), int(erred)) for name, warned, erred in _STAGE.findall(text)]
    if erred := [f"{errors} errors in {name}" for name, _, errors in stages if errors]:
        failed.append(Verdict("fabric", "port_errors", f"{', '.join(erred)}: ibdiagnet2.log names them"))
    elif warned := [f"{warnings} warnings in {name}" for name, warnings, _ in stages if warnings]:
        notes.append(f"{', '.join(warned)}, which it does not name: give ibdiagnet2.log or ibdiagnet2.pm")
        passed = []
    yield from failed
    yield from passed
