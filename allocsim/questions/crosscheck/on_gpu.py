"""A script made fit for a GPU that is there, whose memory and timing no script chooses.

Rule: nothing is left to chance and the card is never filled.  Each free is followed by a wait
for the whole device, so that every event is done by the next request; frees that a scope
defers record their events only later, so that a script has them or record_stream, not both;
and the script's own device becomes a memory fraction of the real one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from allocsim.core import Release
from allocsim.questions.crosscheck.script import Op, Script

__all__ = ["on_gpu"]


def on_gpu(script: Script, release: Release, device_memory: int) -> Script:
    """The script for a card of `device_memory` bytes; a larger device becomes all of it."""
    share = min(1.0, script.device_memory / device_memory)
    defers = release.scope_is_capture and any(op[0] == "P" for op in script.ops)
    kept = (op for op in script.ops if not (defers and op[0] == "r"))
    return replace(script, ops=[["m", share], *_ops(kept, share)], device_memory=device_memory)


def _ops(ops: Iterator[Op], share: float) -> Iterator[Op]:
    for op in ops:
        yield ["m", float(op[1]) * share] if op[0] == "m" else op
        if op[0] == "f":
            yield ["S"]
