"""Tests of `allocsim colocate`: first screen, exit code and JSON."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator
from allocsim.units import GIB, MIB

Cli = Callable[..., Any]


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Write two programs: each keeps 20 MiB and frees a larger block, of 300 and 100 MiB."""
    found = []
    for name, size in (("train", 300), ("serve", 100)):
        gpu = CachingAllocator(80 * GIB, record_history=True)
        gpu.malloc(20 * MIB)
        gpu.free(gpu.malloc(size * MIB))
        found.append(tmp_path / f"{name}.pickle")
        found[-1].write_bytes(pickle.dumps(gpu.snapshot(), protocol=4))
    return found


def test_screen_names_the_failing_phase_and_the_smallest_card(cli: Cli, files: list[Path]) -> None:
    order = ("--phases", "train:A,serve:B", "--context", "100MiB")
    done = cli("colocate", *files, *order, "--device-memory", "600MiB", "--fail-on-oom")
    assert (done.code, done.err) == (3, "")
    lines = done.out.splitlines()
    assert lines[:2] == [
        "Verdict         out of memory on 600.00 MiB in phase 2 (serve, program B), entry",
        "                3: 100.00 MiB requested, 60.00 MiB free",
    ]
    assert "Smallest card   640.00 MiB, 2 MiB less fails" in lines
    assert max(map(len, lines)) <= 80
    assert len(lines) <= 22
    full = cli("colocate", *files, *order, "--device-memory", "600MiB", "-v").out
    assert "540.00 MiB of the card: A 420.00 MiB, B 120.00 MiB" in full
    assert len(full.splitlines()) > len(lines)


def test_screen_of_many_phases_is_short(cli: Cli, files: list[Path]) -> None:
    parts = [f"roll{n}:B@{n % 5},train{n}:A@{n % 5}" for n in range(5)]
    phases = ",".join([*parts, "roll:B,train:A"])
    done = cli("colocate", *files, "--phases", phases, "--no-smallest")
    assert done.code == 0
    assert "… and 8 more phases (-v)" in done.out
    assert len(done.out.splitlines()) <= 22
    document = json.loads(cli("colocate", *files, "--phases", phases, "--json").out)
    assert len(document["phases"]) == 12
    assert document["smallest_device_bytes"] == 440 * MIB
    assert document["failure"] is None


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--phases", "a:A"), "allocsim: phases 'a:A': program B has no phase\n"),
        (("--phases", "a:A", "--interleave", "time"), "not allowed with argument --phases"),
        (("--sleep", "B:deep"), "allocsim: sleep 'B:deep': expected none, cache, pools"),
    ],
)
def test_wrong_options_are_refused_in_a_sentence(
    options: tuple[str, ...], sentence: str, cli: Cli, files: list[Path]
) -> None:
    done = cli("colocate", *files, *options)
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
