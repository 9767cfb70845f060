"""Answers of real PyTorch to random scripts of pinned memory, stored in `data`.

    python -m tests.host.real PYTHON    write the file of the release that PYTHON has

Real PyTorch gives the answers, on a phantom GPU; the model has no part in them.
"""

from __future__ import annotations

import gzip
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from allocsim.core import find_release
from allocsim.verify import RealAnswer, Script
from allocsim.verify.host_generator import make_host_script
from allocsim.verify.installed import InstalledTorch

__all__ = ["DATA", "cases"]

DATA = Path(__file__).with_name("data")
FIRST, N_SCRIPTS, MOST_OPS = 2_000_000, 25, 250
FIELDS = ("addresses", "stats", "segments", "trace", "stopped")


def cases(path: Path) -> Iterator[tuple[Script, RealAnswer]]:
    """Yield the scripts of a file with the answers of real PyTorch."""
    stored = json.loads(gzip.decompress(path.read_bytes()))
    for case in stored["cases"]:
        script = Script(**case["script"] | {"handles": _integers(case["script"]["handles"])})
        yield script, RealAnswer(stored["torch"], messages=[], **case["answer"])


def _integers(handles: dict[str, int]) -> dict[int, int]:
    return {int(number): handle for number, handle in handles.items()}


def write(python: str) -> Path:
    """Run the scripts with the PyTorch of `python`, and return the path of the new file."""
    torch = InstalledTorch(python)
    release = find_release(torch.torch_version)
    stored: dict[str, Any] = {"torch": torch.torch_version, "cases": []}
    for seed in range(FIRST, FIRST + N_SCRIPTS):
        script = make_host_script(seed, release)
        script = script.with_ops(script.ops[:MOST_OPS])
        answer = asdict(torch.run(script))
        stored["cases"].append(
            {"script": asdict(script), "answer": {name: answer[name] for name in FIELDS}}
        )
    torch.close()
    path = DATA / f"{release.version}.json.gz"
    DATA.mkdir(exist_ok=True)
    text = json.dumps(stored, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), mtime=0))
    return path


if __name__ == "__main__":
    print(write(sys.argv[1]))
