"""Comparison of what-if replays of one recording with real PyTorch under the same settings."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

TRUTH = json.loads((Path(__file__).parents[2] / "traces" / "gpt2-ragged-what-if.json").read_text())[
    "runs"
]


@pytest.mark.parametrize(
    "truth", TRUTH, ids=lambda run: f"{run['conf'] or 'defaults'} on {run['device_memory'] >> 20}M"
)
def test_what_if_replay_predicts_the_real_run(
    cli: Callable[..., Any], traces: Path, truth: dict[str, Any]
) -> None:
    done = cli(
        "replay",
        traces / "gpt2-ragged-torch2.15.pickle.gz",
        "--json",
        *("--conf", truth["conf"]),
        *("--device-memory", truth["device_memory"]),
    )
    device = json.loads(done.out)["devices"][0]
    for key in ("peak_reserved_bytes", "peak_allocated_bytes"):
        assert device[key] == truth[key]
    for key in (
        "num_alloc_retries",
        "num_ooms",
        "num_device_alloc",
        "num_device_free",
        "segment.all.allocated",
    ):
        assert device["stats"][key] == truth[key], key
    assert [oom["message"] for oom in device["ooms"]] == [text for text in [truth["oom"]] if text]
