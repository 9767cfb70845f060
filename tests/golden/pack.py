"""Encode the original golden files into the committed copy; nothing is computed.

    python -m tests.golden.pack ../shared/golden

Omitted are only values that follow from the rest, and `cases.unpack` restores them: addresses (from
the `alloc` entries of the trace, in order, except failed ones), size and stream of `alloc`,
`free_requested` and `free_completed` entries (from the op, and the `alloc` before), and the address
of `free_requested` (from the placement of the id).  Every packed case is unpacked and compared
before it is written.
"""

from __future__ import annotations

import gzip
import json
import lzma
import sys
from pathlib import Path
from typing import Any

from tests.golden import cases

__all__ = ["pack", "read_originals"]


def read_originals(folder: Path) -> list[cases.Case]:
    """Return the original cases, ordered by file name."""
    return [json.loads(gzip.decompress(p.read_bytes())) for p in sorted(folder.glob("*.gz"))]


def pack(case: cases.Case) -> cases.Case:
    """Return the compact form of one case."""
    return {**case, "results": [pack_result(result) for result in case["results"]]}


def pack_result(result: cases.Result) -> dict[str, Any]:
    trace = result["trace"]
    known = ("alloc", "free_requested", "free_completed")
    return {
        "torch": result["torch"],
        "failed": [i for i, address in enumerate(result["addresses"]) if address is None],
        "actions": "".join(cases.ACTIONS[entry[0]] for entry in trace),
        "places": [entry[1] for entry in trace if entry[0] != "free_requested"],
        "rest": [entry[2:] for entry in trace if entry[0] not in known],
        "stats": result["stats"],
        "segments": result["segments"],
        "messages": result["messages"],
    }


def main(folder: Path) -> None:
    """Write one file for each family under `data/`."""
    families: dict[str, list[cases.Case]] = {}
    for case in read_originals(folder):
        packed = pack(case)
        if cases.unpack(json.loads(json.dumps(packed))) != case:
            raise SystemExit(f"{case['name']}: the packed form does not give the case back")
        families.setdefault(cases.family(case), []).append(packed)
    cases.DATA.mkdir(exist_ok=True)
    for family, packed_cases in families.items():
        text = json.dumps(packed_cases, separators=(",", ":")).encode()
        path = cases.DATA / f"{family}.json.xz"
        path.write_bytes(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))
        print(f"{path.name}: {len(packed_cases)} cases, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
