"""Provenance survives every format, and gives the use of the card."""

from __future__ import annotations

import dataclasses
import pickle
from pathlib import Path
from typing import Any

import pytest

from allocsim.errors import RecordingError
from allocsim.recording import (
    Mark,
    MarkKind,
    Provenance,
    Recording,
    card_memory,
    load,
    trimmed,
    write_npz,
    write_snapshot,
)
from allocsim.replaying import replay
from allocsim.units import GIB, MIB

MADE = Provenance(
    torch_version="2.15.0+cu130",
    device_name="NVIDIA GeForce RTX 4090",
    device_memory=24 * GIB,
    context_memory=512 * MIB,
    is_phantom=True,
    command="python train.py",
    oom_text="CUDA out of memory.",
    captured="at an out-of-memory error of step 3",
    exit_code=1,
)


def snapshot(**more: object) -> dict[str, object]:
    """Return a snapshot of one request of 3 GiB with its segment, and its free."""
    size = 3 * GIB
    entries: list[dict[str, object]] = [
        {"action": action, "addr": 1 << 40, "size": size, "stream": 0, "frames": []}
        for action in (
            "segment_alloc",
            "alloc",
            "free_requested",
            "free_completed",
            "segment_free",
        )
    ]
    return {"segments": [], "device_traces": [entries], **more}


def written(path: Path, value: object) -> Recording:
    path.write_bytes(pickle.dumps(value))
    return load(path)


def test_provenance_survives_every_format(tmp_path: Path) -> None:
    recording = written(tmp_path / "a.pickle", snapshot(allocsim=MADE.plain()))
    assert recording.provenance == MADE
    write_npz(recording, tmp_path / "a.npz")
    assert load(tmp_path / "a.npz").provenance == MADE
    write_snapshot(recording, tmp_path / "b.pickle")
    assert load(tmp_path / "b.pickle").provenance == MADE


def test_marks_survive_every_form_and_a_cut(tmp_path: Path) -> None:
    """Settings stay in effect after the cut; a call in the removed part is lost."""
    marks = [
        {"device": 0, "entry": 0, "kind": "set_per_process_memory_fraction", "value": 0.5},
        {"device": 0, "entry": 1, "kind": "_set_allocator_settings", "value": "a:1"},
        {"device": 0, "entry": 2, "kind": "empty_cache", "value": None},
        {"device": 0, "entry": 2, "kind": "what a later release knows", "value": {}},
        {"device": 0, "entry": 4, "kind": "MemPool deleted", "value": [0, 3]},
    ]
    made = {**MADE.plain(), "conf_at_start": "b:2", "marks": marks}
    recording = written(tmp_path / "a.pickle", snapshot(allocsim=made))
    kept = (
        Mark(0, MarkKind.FRACTION, 0.5),
        Mark(1, MarkKind.SETTINGS, "a:1"),
        Mark(2, MarkKind.EMPTY_CACHE),
        Mark(4, MarkKind.POOL_DELETED, (0, 3)),
    )
    assert recording.devices[0].marks == kept
    write_npz(recording, tmp_path / "a.npz")
    write_snapshot(recording, tmp_path / "b.pickle")
    for name in ("a.npz", "b.pickle"):
        assert load(tmp_path / name).devices[0].marks == kept
        assert load(tmp_path / name).provenance == recording.provenance
    rest = trimmed(recording.devices[0], 3, 5)
    assert [(mark.entry, mark.value) for mark in rest.marks] == [(0, 0.5), (0, "a:1"), (1, (0, 3))]


def test_trimmed_trace_begins_with_its_step_and_phase(tmp_path: Path) -> None:
    marks = [
        {"device": 0, "entry": entry, "kind": kind, "value": value}
        for entry, kind, value in (
            (0, "step", 8),
            (1, "step", 9),
            (1, "phase", "forward"),
            (2, "phase", "backward"),
            (4, "step", 10),
        )
    ]
    recording = written(tmp_path / "a.pickle", snapshot(allocsim={"marks": marks}))
    write_npz(recording, tmp_path / "a.npz")
    assert load(tmp_path / "a.npz").devices[0].marks == recording.devices[0].marks
    rest = trimmed(recording.devices[0], 3, 5)
    assert [(mark.entry, mark.value) for mark in rest.marks] == [(0, 9), (0, "backward"), (1, 10)]


def test_provenance_text_is_read_without_padding(tmp_path: Path) -> None:
    about = {**MADE.plain(), "oom_text": "out of memory." + " " * 4082}
    recording = written(tmp_path / "a.pickle", snapshot(allocsim=about))
    assert recording.provenance is not None
    assert recording.provenance.oom_text == "out of memory."


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ({"entry": -1}, "entry -1, expected an integer from 0"),
        ({"kind": "set_per_process_memory_fraction", "value": 2.0}, "a number from 0 to 1"),
        ({"kind": "MemPool deleted", "value": [1]}, "has no pool's two numbers"),
        ({"kind": "_set_allocator_settings", "value": 1}, "value 1, expected text"),
        ({"kind": "step", "value": "first"}, "value 'first', expected an integer"),
        ({"kind": "phase", "value": 3}, "value 3, expected text"),
    ],
)
def test_invalid_mark_is_refused(tmp_path: Path, value: dict[str, object], sentence: str) -> None:
    mark = {"device": 0, "entry": 0, "kind": "empty_cache", "value": None, **value}
    with pytest.raises(RecordingError, match=sentence):
        written(tmp_path / "a.pickle", snapshot(allocsim={"marks": [mark]}))


def test_snapshot_without_provenance_is_read(tmp_path: Path) -> None:
    assert written(tmp_path / "a.pickle", snapshot()).provenance is None
    empty = written(tmp_path / "b.pickle", snapshot(allocsim={})).provenance
    assert empty == Provenance()
    assert empty is not None
    assert empty.exit_code is None


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("device_memory", -1, "has device_memory -1, expected an integer from 0 to"),
        ("torch_version", 2.15, "has torch_version 2.15, expected text"),
        ("is_phantom", 1, "has is_phantom 1, expected True or False"),
        ("exit_code", "0", "has exit_code '0', expected an integer"),
    ],
)
def test_wrong_value_of_the_provenance_is_named(
    tmp_path: Path, key: str, value: object, sentence: str
) -> None:
    with pytest.raises(RecordingError, match=rf"the snapshot's 'allocsim' {sentence}"):
        written(tmp_path / "a.pickle", snapshot(allocsim={key: value}))


def test_replay_takes_release_device_and_context_from_provenance(tmp_path: Path) -> None:
    recording = written(tmp_path / "a.pickle", snapshot(allocsim=MADE.plain()))
    run = replay(recording)
    assert (run.torch_version, run.device_memory) == ("2.15", 24 * GIB)
    assert not run.devices[0].ooms
    older = dataclasses.replace(MADE, torch_version="2.6.0", device_memory=3 * GIB + 412 * MIB)
    run = replay(dataclasses.replace(recording, provenance=older))
    assert run.torch_version == "2.6"
    # 3 GiB fit the card, but not beside its context.
    (oom,) = run.devices[0].ooms
    assert "total capacity of 3.40 GiB of which 2.90 GiB is free" in oom.message


def test_replay_on_another_device_is_not_compared_and_keeps_the_context(tmp_path: Path) -> None:
    """Fidelity is measured on the recorded device only; the context has the same size elsewhere."""
    recording = written(tmp_path / "a.pickle", snapshot(allocsim=MADE.plain()))
    assert replay(recording, device_memory="24GiB").devices[0].fidelity is not None
    elsewhere = replay(recording, device_memory=3 * GIB + 512 * MIB).devices[0]
    assert (elsewhere.fidelity, len(elsewhere.ooms)) == (None, 0)
    assert len(replay(recording, device_memory=3 * GIB + 510 * MIB).devices[0].ooms) == 1


H200 = 150_109_880_320
GPU = Path(__file__).parents[3] / "shared" / "gpu"
TEXT = (
    "CUDA out of memory. Tried to allocate 646.00 MiB. GPU 0 has a total capacity of 139.80 GiB of "
    "which 359.56 MiB is free. {}Of the allocated memory 6.04 GiB is allocated by PyTorch, and "
    "1008.08 MiB is reserved by PyTorch but unallocated."
)
OWN = "Including non-PyTorch memory, this process has 7.75 GiB memory in use. "


def made(outside: int, text: str = "", total: int = H200, **known: Any) -> Provenance:
    return Provenance(device_memory=total, context_memory=outside, oom_text=text, **known)


def test_recorded_card_memory_is_used_unchanged() -> None:
    card = card_memory(made(133 * GIB, other_memory=132 * GIB, other_processes=2))
    assert card is not None
    assert (card.others, card.context, card.is_estimated) == (132 * GIB, GIB, False)
    assert card.sentence == (
        "2 other processes hold 132.00 GiB of 139.80 GiB on this card; 7.80 GiB were left for this "
        "program"
    )


def test_error_text_gives_the_memory_of_each_process() -> None:
    text = TEXT.format("Process 600 has 100.00 GiB memory in use. Process 601 has 31.69 GiB memory "
                       f"in use. {OWN}")  # fmt: skip
    card = card_memory(made(132 * GIB + 400 * MIB, text))
    assert card is not None
    assert (card.processes, card.is_estimated) == (2, False)
    assert card.others == 100 * GIB + int(31.69 * GIB)


def test_oom_text_with_only_its_own_process_has_no_others() -> None:
    card = card_memory(made(700 * MIB, TEXT.format(OWN)))
    assert card is not None
    assert (card.others, card.is_shared, card.sentence) == (0, False, "")


def test_oom_text_without_its_own_process_is_ignored() -> None:
    """In a container, this program is one of the numbered processes."""
    card = card_memory(made(8 * GIB, TEXT.format("Process 600 has 7.75 GiB memory in use. ")))
    assert card is not None
    assert card.is_estimated


@pytest.mark.parametrize(
    ("total", "outside", "is_shared"),
    [
        (H200, 870 * MIB, False),  # a context
        (H200, 3 * GIB, False),  # as likely a context and NCCL's buffers
        (H200, 9 * GIB, True),
        (24 * GIB, 2 * GIB, False),
        (24 * GIB, 3 * GIB, True),
    ],
)
def test_estimated_memory_of_others_is_notable_from_the_larger_limit(
    total: int, outside: int, is_shared: bool
) -> None:
    card = card_memory(made(outside, total=total))
    assert card is not None and card.is_estimated
    assert card.is_shared is is_shared
    assert card.others_low <= card.others <= card.others_high <= outside
    assert card.others + card.context == outside


@pytest.mark.parametrize(
    ("total", "others", "is_shared"),
    [(H200, GIB, True), (H200, GIB - 1, False), (8 * GIB, 410 * MIB, True)],
)
def test_recorded_memory_of_others_is_notable_from_1_gib_or_5_percent(
    total: int, others: int, is_shared: bool
) -> None:
    card = card_memory(made(others + 500 * MIB, total=total, other_memory=others))
    assert card is not None
    assert card.is_shared is is_shared


def test_card_memory_of_a_phantom_has_no_other_processes() -> None:
    phantom = Provenance(device_memory=24 * GIB, context_memory=4 * GIB, is_phantom=True)
    card = card_memory(phantom)
    assert card is not None and not card.is_shared
    assert card_memory(Provenance()) is None
    assert card_memory(None) is None


@pytest.mark.skipif(not GPU.is_dir(), reason="needs the recordings of a real card")
@pytest.mark.parametrize(
    ("name", "left_mib"),
    [("default-exit", 9301), ("small-oom", 8301), ("small-exit", 8301), ("expandable-oom", 7701)],
)
def test_card_memory_of_a_shared_real_card(name: str, left_mib: int) -> None:
    """The other program received the number of bytes to leave free."""
    card = card_memory(load(GPU / "oom" / f"{name}.npz.gz").provenance)
    assert card is not None and card.is_shared
    truth = H200 - left_mib * MIB
    if card.is_estimated:
        assert card.others_low <= truth <= card.others_high
    else:
        assert abs(card.others - truth) < 16 * MIB  # the text has two decimals
