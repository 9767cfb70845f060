"""Smallest devices for the recordings of the repository, each checked by a new replay."""

from __future__ import annotations

from pathlib import Path

import pytest

from allocsim import load
from allocsim.core import PAGE
from allocsim.replaying import Prepared, Trials, prepare, smallest_device
from allocsim.simulation import Setting
from allocsim.units import GIB
from tests.recordings import phantom_recordings

TRACES = Path(__file__).parents[2] / "traces"
RECORDINGS = phantom_recordings()
FEW = [
    TRACES / "counted" / "warm_start-torch2.15.npz.gz",
    TRACES / "recordings" / "cuda_graphs-gc-torch2.15.npz.gz",
    TRACES / "recordings" / "two_streams-tight-torch2.6.npz.gz",
]
CONFS = (
    "",
    "expandable_segments:True",
    "garbage_collection_threshold:0.8",
    "max_split_size_mb:32",
    "garbage_collection_threshold:0.6,max_split_size_mb:64",
    "roundup_power2_divisions:8",
    "per_process_memory_fraction:0.8",
)


def prove(prepared: Prepared) -> int:
    """Replay each smallest device of a device and one page less; return their number."""
    trials, n_claims = Trials(prepared), 0
    for setting in dict.fromkeys([prepared.recorded, *map(Setting, CONFS)]):
        found = smallest_device(trials, setting)
        if found is None:
            continue
        n_claims += 1
        claim = f"{found.device_memory:,} bytes under {setting.conf!r}"
        assert Trials(prepared).under(setting, found.device_memory).goes_through, claim
        below = Trials(prepared).under(setting, found.device_memory - PAGE)
        assert not below.goes_through, claim
        assert found.fails_at in (None, below.oom_entry), claim
    return n_claims


@pytest.mark.parametrize("path", FEW, ids=lambda path: path.name)
def test_smallest_device_suffices_and_a_page_less_does_not(path: Path) -> None:
    (prepared,) = prepare(load(path))
    assert prove(prepared) >= 5


@pytest.mark.slow
def test_smallest_devices_of_all_recordings() -> None:
    n_claims = sum(prove(each) for path in RECORDINGS for each in prepare(load(path)))
    assert n_claims > 800


def test_smallest_device_leaves_out_memory_of_other_processes() -> None:
    """Other processes held 130.8 GiB of the recorded card; the program alone needs under 9 GiB."""
    recording = load(TRACES / "h200" / "oom" / "default-exit.npz.gz")
    (prepared,) = prepare(recording)
    assert prepared.others_memory > 120 * GIB
    found = smallest_device(Trials(prepared), prepared.recorded)
    assert found is not None
    assert found.device_memory < 9 * GIB
    alone = Trials(prepared).alone()
    assert alone.under(prepared.recorded, found.device_memory).goes_through
    assert not alone.under(prepared.recorded, found.device_memory - PAGE).goes_through
