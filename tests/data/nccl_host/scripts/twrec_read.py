"""Reads what nccl_recorder.c wrote; Python 3.9+, standard library only. Apache-2.0, the trainwarden project.

    python twrec_read.py FILE...              one JSON line per callback on stdout
    python twrec_read.py --pack FILE... -o X  the same, gzipped (all times from the first row on, ids invented)
    python twrec_read.py --sums FILE...       what was seen: order, threads, cost, GPU times (all ranks of one run)
"""

from __future__ import annotations

import argparse
import collections
import gzip
import json
import statistics
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

HEADER_BYTES = 8192
ROW = struct.Struct("<QQIIBBHIQQii4Q")
COMM = struct.Struct("<Qiiii32s")
MAX_COMMS, MAX_NAMES, NAME_BYTES = 64, 64, 24
KINDS = {1: "init", 2: "start", 3: "stop", 4: "state", 5: "finalize"}
TYPES = {
    1: "Group", 2: "Coll", 4: "P2p", 8: "ProxyOp", 16: "ProxyStep", 32: "ProxyCtrl", 64: "KernelCh", 128: "NetPlugin",
    256: "GroupApi", 512: "CollApi", 1024: "P2pApi", 2048: "KernelLaunch", 4096: "CeColl", 8192: "CeSync",
    16384: "CeBatch",
}  # fmt: skip


def read(path: str | Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Header and rows of one file; torn rows are left out and counted."""
    raw = Path(path).read_bytes()
    if raw[:8] != b"TWREC001":
        raise ValueError(f"{path}: not a recording")
    version, pid, offset, most, count, comms, _, interface, loads = struct.unpack_from("<IIqQQIIII", raw, 8)
    at = 56
    table = []
    for place in range(min(comms, MAX_COMMS)):
        ident, nodes, ranks, rank, _, name = COMM.unpack_from(raw, at + place * COMM.size)
        table.append({"id": ident, "nodes": nodes, "ranks": ranks, "rank": rank, "name": _text(name)})
    at += MAX_COMMS * COMM.size
    names = [_text(raw[at + n * NAME_BYTES : at + (n + 1) * NAME_BYTES]) for n in range(MAX_NAMES)]
    rows, torn = [], 0
    for place in range(min(count, most)):
        row = ROW.unpack_from(raw, HEADER_BYTES + place * ROW.size)
        if row[0] != place + 1:
            torn += 1
            continue
        rows.append(_row(row, names))
    header = {"version": version, "pid": pid, "wall_minus_mono_ns": offset, "interface": interface, "loads": loads,
              "dropped": max(0, count - most), "torn": torn, "comms": table}  # fmt: skip
    return header, rows


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode(errors="replace")


def _row(row: tuple[int, ...], names: list[str]) -> dict[str, Any]:
    serial, begin, cost, tid, kind, comm, state, kind_of_event, handle, parent, rank, step, *f = row
    out: dict[str, Any] = {"n": serial, "t": begin, "cost": cost, "tid": tid, "do": KINDS.get(kind, kind)}
    if comm:
        out["comm"] = comm - 1
    if kind_of_event:
        out["type"] = TYPES.get(kind_of_event, kind_of_event)
    if kind in (2, 3, 4):
        out["h"] = handle
    if kind == 2 and parent:
        out["parent"] = parent
    if step:
        out["step"] = step
    if kind == 1:
        out |= {"rank": rank, "mask_before": f[1]}
    if kind == 4:
        out["state"] = state
        if f[0]:
            out["gpu" if state == 22 else "arg"] = f[0]
    if kind == 2:
        out |= _fields(kind_of_event, f, names)
    return out


def _fields(event: int, f: list[int], names: list[str]) -> dict[str, Any]:
    def name(place: int) -> str:
        number = f[3] >> 8 * place & 255
        return names[number - 1] if number else ""

    if event == 2:
        return {"seq": f[0], "count": f[1], "root": f[2] & 0xFFFFFFFF, "channels": f[2] >> 32 & 255,
                "warps": f[2] >> 40 & 255, "func": name(0), "dtype": name(1), "algo": name(2), "proto": name(3)}  # fmt: skip
    if event == 4:
        return {"count": f[1], "peer": f[2] & 0xFFFFFFFF, "channels": f[2] >> 32 & 255, "func": name(0), "dtype": name(1)}
    if event == 8:
        return {"pid": f[0], "peer": f[1], "steps": f[2] & 0xFFFFFFFF, "chunk": f[2] >> 32, "channel": f[3] & 255,
                "send": f[3] >> 8}  # fmt: skip
    if event == 16:
        return {"proxy_step": f[0]}
    if event == 64:
        return {"gpu": f[0], "channel": f[1]}
    if event == 256:
        return {"captured": f[0], "depth": f[1]}
    if event in (512, 1024):
        return {"captured": f[0], "count": f[1], "stream": f[2], "func": name(0), "dtype": name(1)}
    if event == 4096:
        return {"seq": f[0], "count": f[1], "ce_seq": f[2], "func": name(0), "dtype": name(1), "sync": name(2)}
    return {"stream": f[0]} if event == 2048 else {}


# -- what was seen ------------------------------------------------------------------------------------------


def operations(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Coll and P2p events in order, with the GPU times of their channels."""
    starts = {row["h"]: row for row in rows if row["do"] == "start"}
    channels: dict[int, list[list[int]]] = collections.defaultdict(list)
    for row in rows:
        if row["do"] == "state" and row["state"] == 22:
            begun = starts.get(row["h"])
            if begun is not None and "gpu" in row:
                channels[begun.get("parent", 0)].append([begun["channel"], begun["gpu"], row["gpu"]])
    out = []
    for row in rows:
        if row["do"] == "start" and row.get("type") in ("Coll", "P2p"):
            keep = ("n", "t", "tid", "comm", "type", "step", "seq", "func", "count", "dtype", "algo", "proto", "peer")
            out.append({key: row[key] for key in keep if key in row} | {"gpu": sorted(channels.get(row["h"], []))})
    return out


def duration(op: dict[str, Any]) -> int | None:
    """First start to last stop over the channels."""
    return max(c[2] for c in op["gpu"]) - min(c[1] for c in op["gpu"]) if op["gpu"] else None


def sums(paths: list[str]) -> dict[str, Any]:
    out: dict[str, Any] = {}
    joined: dict[tuple[Any, ...], dict[int, Any]] = collections.defaultdict(dict)
    for path in paths:
        header, rows = read(path)
        costs: dict[str, list[int]] = collections.defaultdict(list)
        threads: dict[str, collections.Counter[int]] = collections.defaultdict(collections.Counter)
        for row in rows:
            what = f"{row['do']} {row.get('type', '')}".strip()
            costs[what].append(row["cost"])
            threads[what][row["tid"]] += 1
        first = [f"{r['do']} {r.get('type', '')}{' ' + str(r['state']) if 'state' in r else ''}" for r in rows[:60]]
        bad = seen = 0
        for op in operations(rows):
            seqs = op.get("seq")
            comm = header["comms"][op["comm"]] if "comm" in op and op["comm"] < len(header["comms"]) else {}
            for _, begun, ended in op["gpu"]:
                seen += 1
                bad += ended < begun
            if op["type"] == "Coll":
                joined[(comm.get("id"), op["func"], seqs)].setdefault(comm.get("rank", -1), []).append(op)
        out[Path(path).name] = {
            "header": {key: value for key, value in header.items() if key != "comms"}, "comms": header["comms"],
            "callbacks": {what: [len(c), int(statistics.median(c)), max(c)] for what, c in sorted(costs.items())},
            "threads": {what: dict(c) for what, c in sorted(threads.items())}, "first": first,
            "gpu_records": seen, "stop_before_start": bad,
        }  # fmt: skip
    table = []
    for (_, func, seq), ranks in sorted(joined.items(), key=lambda item: min(o[0]["t"] for o in item[1].values())):
        durations = {rank: duration(ops[0]) for rank, ops in ranks.items()}
        known = {rank: d for rank, d in durations.items() if d is not None}
        if len(known) > 1:
            least = min(known.values())
            table.append({"func": func, "seq": seq, "step": next(iter(ranks.values()))[0].get("step"),
                          "min": least, "least_rank": min(known, key=lambda r: known[r]),
                          "wait": {r: d - least for r, d in sorted(known.items())},
                          "repeats": max(len(o) for o in ranks.values())})  # fmt: skip
    out["joined"] = table
    return out


def packed(paths: list[str]) -> Iterator[str]:
    """Rows of all ranks with times from the first one on, small thread numbers and invented communicator ids."""
    read_all = [read(path) for path in paths]
    zero = min(rows[0]["t"] for _, rows in read_all if rows)
    ids: dict[int, int] = {}
    for number, (header, rows) in enumerate(read_all):
        for comm in header["comms"]:
            comm["id"] = ids.setdefault(comm["id"], 0x1000 + len(ids))
        tids: dict[int, int] = {}
        streams: dict[int, int] = {}
        yield json.dumps({"file": number, **{k: v for k, v in header.items() if k not in ("pid", "wall_minus_mono_ns")}})
        for row in rows:
            row["t"] -= zero
            if "gpu" in row:  # the GPU's globaltimer is wall time: on the same scale as `t`, as far as it is true
                row["gpu"] -= zero + header["wall_minus_mono_ns"]
            row["tid"] = tids.setdefault(row["tid"], len(tids))
            if "pid" in row:
                row["pid"] = 0
            if "stream" in row:
                row["stream"] = streams.setdefault(row["stream"], len(streams))
            yield json.dumps(row, separators=(",", ":"))


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("files", nargs="+")
    parser.add_argument("--pack", action="store_true")
    parser.add_argument("--sums", action="store_true")
    parser.add_argument("-o", default="-")
    options = parser.parse_args()
    if options.sums:
        print(json.dumps(sums(options.files), indent=1))
        return 0
    lines = packed(options.files) if options.pack else (json.dumps(r) for f in options.files for r in read(f)[1])
    if options.o == "-":
        sys.stdout.writelines(line + "\n" for line in lines)
    else:
        with gzip.GzipFile(options.o, "wb", mtime=0) as file:
            file.writelines(line.encode() + b"\n" for line in lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
