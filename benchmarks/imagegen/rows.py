"""What was measured on the real GPU, and how a prediction stands against it.

Rule: `measured.json` holds figures that others published and nothing of ours; a row's address names
the file that it comes from.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["MEASURED", "Outcome", "Row", "read_rows"]

MEASURED = Path(__file__).with_name("measured.json")

SOURCE = "https://github.com/huggingface/peft/blob/main/method_comparison/image-gen/results/"

Interval = tuple[float, float]
"""The means of allocated and of reserved bytes over a hundred steps, each read after a step."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published run on an NVIDIA L40S.

    experiment: such as "lora/flux2-klein-default", a folder of the comparison's experiments.
    steps: how many it trained.
    releases: of torch, transformers, diffusers and peft.
    peft_commit: the commit of huggingface/peft that it ran, whose script is the one to drive.
    peak_reserved: bytes, of training without the evaluations, less what was reserved at the start.
    intervals: one for every whole hundred of steps.
    """

    experiment: str
    steps: int
    releases: Mapping[str, str]
    peft_commit: str
    peak_reserved: int
    intervals: tuple[Interval, ...]

    @property
    def address(self) -> str:
        return f"{SOURCE}{self.experiment.replace('/', '--')}.json"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the phantom reserved in the place of the L40S.

    releases: those it ran with.
    steps: how many it trained, which may be fewer than the row's.
    """

    row: Row
    releases: Mapping[str, str]
    steps: int
    peak_reserved: int
    intervals: tuple[Interval, ...]

    @property
    def error(self) -> int:
        """Predicted less measured, bytes."""
        return self.peak_reserved - self.row.peak_reserved

    @property
    def share(self) -> float:
        """The error as a share of what was measured."""
        return self.error / self.row.peak_reserved

    @property
    def equal_means(self) -> tuple[int, int]:
        """How many means are the measured ones, to the last digit, and of how many."""
        pairs = [
            means
            for interval, measured in zip(self.intervals, self.row.intervals, strict=False)
            for means in zip(interval, measured, strict=True)
        ]
        return sum(ours == theirs for ours, theirs in pairs), len(pairs)

    @property
    def other_releases(self) -> tuple[str, ...]:
        """The packages of which it ran another release than the row did, as "peft 0.20.0"."""
        return tuple(
            f"{package} {release}"
            for package, release in self.releases.items()
            if release != self.row.releases[package]
        )

    @classmethod
    def of(cls, row: Row, said: Mapping[str, Any]) -> Outcome:
        """From what `inside.py` writes."""
        return cls(
            row=row,
            releases=said["releases"],
            steps=said["steps"],
            peak_reserved=said["peak_reserved"],
            intervals=tuple((allocated, reserved) for allocated, reserved in said["intervals"]),
        )


def read_rows(file: Path = MEASURED) -> tuple[Row, ...]:
    """The published runs, by name."""
    packages = ("torch", "transformers", "diffusers", "peft")
    return tuple(
        Row(
            experiment=row["experiment"],
            steps=row["steps"],
            releases={package: row[package] for package in packages},
            peft_commit=row["peft_commit"],
            peak_reserved=row["peak_reserved"],
            intervals=tuple((allocated, reserved) for allocated, reserved in row["intervals"]),
        )
        for row in json.loads(file.read_text())
    )
