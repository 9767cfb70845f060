"""Measure the errors of what-if replays of recordings that do not begin on an empty device.

    python -m benchmarks.midrun [-o FILE] [--held-out]

Complete recordings are cut at 10, 25, 50 and 75 % of their entries.  The rest has the later entries
and the final segments, like a recording that lost its first entries.  Each is replayed under every
usual setting, once with the initial segments kept and once with the live blocks allocated again.
The peak of reserved memory is compared with the truth: the most that the complete recording
reserves under the same setting from that entry on.  Takes some minutes.

The default start was chosen on these recordings; --held-out uses others.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from statistics import median

import numpy as np

from allocsim.core import AllocatorConfig
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.recommend import usual_settings
from allocsim.recording import Recording, load
from allocsim.recording.start_state import trimmed
from allocsim.replaying import Prepared, prepare
from allocsim.simulation import Setting, Start, Timeline
from allocsim.workload import fragments, graphs, server, streams, training

TRACES = Path(__file__).parents[1] / "traces"
SHARES = (10, 25, 50, 75)
"""Share of the entries that is cut off, in per cent."""

NAMES = (
    "cuda_graphs",
    "gpt2_training",
    "greedy_decoding",
    "llama_checkpointing",
    "lora_finetuning",
    "resnet_training",
    "two_streams",
    "unet_diffusion_step",
)
"""Recordings in `traces/programs`."""
RUNS = tuple(
    f"{setting}-torch{release}"
    for setting, release in (
        ("default", "2.15"),
        ("default", "2.6"),
        ("expandable", "2.15"),
        ("max-split", "2.15"),
        ("roundup", "2.15"),
        ("tight", "2.15"),
    )
)
RECORDED = (
    "gpt2-ragged-torch2.15.pickle.gz",
    "gpt2-side-stream-torch2.15.pickle.gz",
    *(f"recordings/{name}-{run}.npz.gz" for name in NAMES for run in RUNS),
)
HELD_OUT = tuple(
    f"recordings/{name}-{setting}-torch2.6.npz.gz"
    for name in NAMES
    for setting in ("expandable", "max-split", "roundup", "tight")
)
PROGRAMS: dict[str, Callable[[str], Recording]] = {
    "training": lambda conf: training(steps=12, conf=conf),
    "training, ragged": lambda conf: training(steps=12, ragged=True, conf=conf),
    "server": lambda conf: server(conf=conf),
    "fragments": lambda conf: fragments(conf=conf),
    "streams": lambda conf: streams(conf=conf),
    "graphs": lambda conf: graphs(conf=conf),
}
MADE = {
    f"{name} {conf or '(default)'}": (make, conf)
    for conf in ("", "expandable_segments:True", "max_split_size_mb:128")
    for name, make in PROGRAMS.items()
}
"""Synthetic recordings by name."""
VARIED: dict[str, Callable[[str], Recording]] = {
    "small training": lambda conf: training(steps=20, layers=6, hidden=512, seed=1, conf=conf),
    "small training, ragged": lambda conf: training(
        steps=20, layers=6, hidden=512, ragged=True, seed=1, conf=conf
    ),
    "busy server": lambda conf: server(concurrent=16, growth=64, seed=1, conf=conf),
    "large fragments": lambda conf: fragments(block_size="5MiB", life=5, seed=1, conf=conf),
    "small streams": lambda conf: streams(buffer_size="3MiB", lag=5, seed=1, conf=conf),
    "more graphs": lambda conf: graphs(pools=8, tensor_size="3MiB", seed=1, conf=conf),
}
OTHERS = {
    f"{name} {conf or '(default)'}": (make, conf)
    for conf in ("", "expandable_segments:True", "max_split_size_mb:64")
    for name, make in VARIED.items()
}
SYNTHETIC = {**MADE, **OTHERS}

REFUSALS = (ConfigError, UndefinedBehaviorError, UpstreamError)


@dataclass(frozen=True, slots=True)
class Case:
    """One cut recording under one setting; peaks in bytes, None if the replay does not complete.

    is_made: True if the recording is synthetic.
    share: share of the entries that is cut off, in per cent.
    other_memory: True if the setting needs other segments than the recorded setting.
    shown: default start.
    truth: peak of the complete recording under the setting, from the cut on.
    The last two fields are the peaks of the replay with the initial segments, and with the live
    blocks allocated again.
    """

    name: str
    is_made: bool
    share: int
    conf: str
    other_memory: bool
    shown: Start
    truth: int
    kept: int | None
    anew: int | None

    def error(self, start: Start | None) -> float:
        """Return the error of the peak in per cent of the truth.

        start: start state of the replay; None for the default.
        """
        by_start = {Start.KEPT: self.kept, Start.REALLOCATED: self.anew}
        found = by_start[start or self.shown]
        return float("inf") if found is None else 100 * (found - self.truth) / self.truth

    @property
    def is_between(self) -> bool:
        """True if the true peak is between the peaks of both start states."""
        known = [peak for peak in (self.kept, self.anew) if peak is not None]
        return bool(known) and min(known) <= self.truth <= max(known)


def cases_of(name: str) -> list[Case]:
    """Return every cut of one recording under every usual setting."""
    recording = _recording(name)
    (prepared,) = prepare(recording)
    truths = {setting: _truth(prepared, setting) for setting in usual_settings(prepared.config)}
    found = []
    for share in SHARES:
        entry = len(prepared.trace) * share // 100
        trace = trimmed(prepared.trace, entry, len(prepared.trace))
        (part,) = prepare(replace(recording, devices=(trace,)))
        for setting, timeline in truths.items():
            if timeline is not None:
                found.append(_case(name, share, setting, part, _most(timeline, entry)))
    return found


def _recording(name: str) -> Recording:
    if name not in SYNTHETIC:
        return load(TRACES / name)
    make, conf = SYNTHETIC[name]
    return make(conf)


def _truth(prepared: Prepared, setting: Setting) -> Timeline | None:
    """Return the replay of the complete recording; None if it does not complete."""
    try:
        drive = prepared.drive(setting, prepared.capacity)
    except REFUSALS:
        return None
    is_whole = drive.stopped_at is None
    return drive.timeline.build(drive.plan.steps.entry) if is_whole else None


def _most(timeline: Timeline, entry: int) -> int:
    """Return the peak of reserved memory in bytes, from `entry` on."""
    first = int(np.searchsorted(np.maximum.accumulate(timeline.entry), entry))
    return int(timeline.reserved[max(first - 1, 0) :].max())


def _case(name: str, share: int, setting: Setting, part: Prepared, truth: int) -> Case:
    config = setting.config(part.release)
    peaks = {start: _peak(part, setting, start) for start in Start}
    return Case(
        name=name,
        is_made=name in SYNTHETIC,
        share=share,
        conf=setting.conf,
        other_memory=_needs_other_memory(config, part.config),
        shown=part.start_under(setting, part.capacity),
        truth=truth,
        kept=peaks[Start.KEPT],
        anew=peaks[Start.REALLOCATED],
    )


def _needs_other_memory(config: AllocatorConfig, recorded: AllocatorConfig) -> bool:
    is_switched = config.expandable_segments != recorded.expandable_segments
    return is_switched or config.large_segment_size != recorded.large_segment_size


def _peak(part: Prepared, setting: Setting, start: Start) -> int | None:
    try:
        drive = part.drive(setting, part.capacity, start=start)
    except REFUSALS:
        return None
    if drive.stopped_at is not None:
        return None
    return drive.allocator.memory_stats()["reserved_bytes.all.peak"]


def _groups(cases: Sequence[Case]) -> Iterator[tuple[str, list[Case]]]:
    yield "all", list(cases)
    yield "programs of `traces/`", [case for case in cases if not case.is_made]
    yield "synthetic", [case for case in cases if case.is_made]
    other = [case for case in cases if case.other_memory]
    same = [case for case in cases if not case.other_memory]
    yield "other segments or mappings", other
    yield "the same, cut otherwise", same
    for option in sorted({_option(case) for case in same}):
        yield f"of those, {option}", [case for case in same if _option(case) == option]
    for share in SHARES:
        yield f"cut at {share} %", [case for case in cases if case.share == share]


def _option(case: Case) -> str:
    """Return the name of the option that the setting changes."""
    tried = case.conf.split(",", maxsplit=1)[0]
    return f"`{tried.split(':', maxsplit=1)[0]}`" if tried else "the defaults"


def table(cases: Sequence[Case]) -> Iterator[str]:
    """Yield the errors as a Markdown table."""
    yield "| what-ifs | number | kept | laid out anew | shown | the range holds the truth |"
    yield "|---|---|---|---|---|---|"
    for name, mine in _groups(cases):
        columns = " | ".join(_errors(mine, start) for start in (*Start, None))
        held = 100 * sum(case.is_between for case in mine) / len(mine)
        yield f"| {name} | {len(mine):,} | {columns} | {held:.0f} % |"


def _errors(cases: Sequence[Case], start: Start | None) -> str:
    """Return median and worst error of the completed replays, and the number of failed ones."""
    errors = [abs(case.error(start)) for case in cases]
    whole = [error for error in errors if error != float("inf")]
    text = f"{median(whole):.1f} %, {max(whole):.0f} %" if whole else "none"
    failed = len(errors) - len(whole)
    return f"{text}; {failed} failed" if failed else text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("-o", "--output", type=Path, help="file for the table and all cases")
    parser.add_argument("--held-out", action="store_true", help="use the other recordings")
    arguments = parser.parse_args()
    recorded = HELD_OUT if arguments.held_out else RECORDED
    made = OTHERS if arguments.held_out else MADE
    began = time.process_time(), time.perf_counter()
    with ProcessPoolExecutor(2) as pool:
        cases = [case for found in pool.map(cases_of, (*recorded, *made)) for case in found]
    lines = list(table(cases))
    now = datetime.now(UTC)
    lines += [
        "",
        f"{len(recorded)} recordings of `traces/` and {len(made)} synthetic ones, "
        f"{time.perf_counter() - began[1]:.0f} s on two cores ({platform.machine()}, Python "
        f"{platform.python_version()}), {now:%d %B %Y}.",
    ]
    print("\n".join(lines))
    if arguments.output is not None:
        every = "\n".join(map(repr, cases))
        arguments.output.write_text("\n".join(lines) + f"\n\n{every}\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
