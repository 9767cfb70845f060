"""Measurements on the real GPU, and their comparison with predictions.

Rule: `measured.json` holds only numbers that others published. Each row has the address of the file
that published its numbers.
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
"""Means of allocated and reserved bytes over a hundred steps, each read after a step."""


@dataclass(frozen=True, slots=True)
class Row:
    """One published training run on an NVIDIA L40S.

    experiment: folder of the comparison's experiments, such as "lora/flux2-klein-default".
    steps: number of training steps.
    releases: releases of torch, transformers, diffusers and peft.
    peft_commit: commit of huggingface/peft whose script the row ran.
    peak_reserved: peak in bytes of the training without evaluations, less the memory reserved at
        the start.
    intervals: means for every whole hundred of steps.
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
    """Prediction for one published run.

    releases: releases that the program ran with.
    steps: number of training steps, which may be fewer than the row's.
    peak_reserved, intervals: predictions for the fields of `Row` with the same names.
    """

    row: Row
    releases: Mapping[str, str]
    steps: int
    peak_reserved: int
    intervals: tuple[Interval, ...]

    @property
    def error(self) -> int:
        """Predicted minus measured bytes."""
        return self.peak_reserved - self.row.peak_reserved

    @property
    def share(self) -> float:
        """Error as a share of the measured bytes."""
        return self.error / self.row.peak_reserved

    @property
    def equal_means(self) -> tuple[int, int]:
        """Number of means that equal the measured means exactly, and number of all means."""
        pairs = [
            means
            for interval, measured in zip(self.intervals, self.row.intervals, strict=False)
            for means in zip(interval, measured, strict=True)
        ]
        return sum(ours == theirs for ours, theirs in pairs), len(pairs)

    @property
    def other_releases(self) -> tuple[str, ...]:
        """Packages whose release differs from the row's, such as "peft 0.20.0"."""
        return tuple(
            f"{package} {release}"
            for package, release in self.releases.items()
            if release != self.row.releases[package]
        )

    @classmethod
    def of(cls, row: Row, said: Mapping[str, Any]) -> Outcome:
        """Return the outcome that `inside.py` printed.

        said: contents of its JSON output.
        """
        return cls(
            row=row,
            releases=said["releases"],
            steps=said["steps"],
            peak_reserved=said["peak_reserved"],
            intervals=tuple((allocated, reserved) for allocated, reserved in said["intervals"]),
        )


def read_rows(file: Path = MEASURED) -> tuple[Row, ...]:
    """Return the published runs, by name."""
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
