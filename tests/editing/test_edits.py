"""Edits predicted from a recording, compared with the recording of the edited program."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocsim import load, replay, replay_edited, tune
from allocsim.cli import main
from allocsim.editing import EDIT_FORMS, edit_devices, parse_edit, try_edits
from allocsim.errors import ConfigError
from allocsim.recording import Recording, write_npz
from allocsim.replaying import prepare
from allocsim.workload.recorder import Recorder
from tests.editing.programs import Source, order_with_largest_first, recorded

PLAIN = Source((40, 9, 120, 35, 64))
STREAMS = replace(PLAIN, records_stream=True)
RAGGED = Path(__file__).parents[2] / "traces" / "gpt2-ragged-torch2.15.pickle.gz"


def peak_of(source: Source) -> int:
    return replay(recorded(source)).devices[0].peak_reserved_bytes


def edited(recording: Recording, *edits: str, conf: str | None = None) -> int:
    return replay_edited(recording, edits, conf).devices[0].peak_reserved_bytes


CASES: dict[str, dict[str, Any]] = {
    "empty-cache after step 2": {"empties_after": frozenset({1})},
    "empty-cache every 2 steps": {"empties_after": frozenset({1, 3})},
    "preallocate 200MiB": {"preallocated": 200},
    "largest step first": {"order": order_with_largest_first(PLAIN.lengths)},
    "drop step 1": {"order": (1, 2, 3, 4)},
    "drop step 3": {"order": (0, 1, 3, 4)},
    "drop step 5": {"order": (0, 1, 2, 3)},
    "repeat steps 2..3 x 4": {"order": (0, 1, 2, 1, 2, 1, 2, 1, 2, 3, 4)},
    "repeat step 1 x 3": {"order": (0, 0, 0, 1, 2, 3, 4)},
}


@pytest.mark.parametrize("keeps", [True, False], ids=["carried gradients", "local gradients"])
@pytest.mark.parametrize("edit", CASES)
def test_predicted_peak_is_that_of_the_edited_program(edit: str, keeps: bool) -> None:
    source = replace(PLAIN, keeps_gradients=keeps)
    assert edited(recorded(source), edit) == peak_of(replace(source, **CASES[edit]))


def test_edit_changes_the_peak_it_predicts() -> None:
    recording = recorded(PLAIN)
    before = replay(recording).devices[0].peak_reserved_bytes
    assert edited(recording, "largest step first") < before
    assert edited(recording, "empty-cache every 1 steps") < before


def test_several_edits_apply_in_their_order() -> None:
    both = edited(recorded(PLAIN), "drop step 1", "empty-cache after step 3")
    assert both == peak_of(replace(PLAIN, order=(1, 2, 3, 4), empties_after=frozenset({2})))


def test_one_stream_completes_frees_at_once() -> None:
    assert edited(recorded(STREAMS), "one stream") == peak_of(PLAIN)
    assert edited(recorded(PLAIN), "one stream") == peak_of(PLAIN)


def test_free_early_keeps_the_streams_apart() -> None:
    early = edited(recorded(STREAMS), "free early")
    assert edited(recorded(STREAMS), "one stream") != early
    assert early < peak_of(STREAMS)


@settings(max_examples=25, deadline=None)
@given(
    lengths=st.lists(st.integers(1, 90), min_size=3, max_size=7).map(tuple),
    draw=st.randoms(use_true_random=False),
    keeps=st.booleans(),
    conf=st.sampled_from(["", "expandable_segments:True"]),
)
def test_reordered_steps_equal_the_reordered_program(
    lengths: tuple[int, ...], draw: Random, keeps: bool, conf: str
) -> None:
    source = Source(lengths, keeps_gradients=keeps)
    (prepared,) = prepare(recorded(source, conf=conf))
    (device,) = edit_devices([prepared], [])
    order = [draw.randrange(len(lengths)) for _ in range(draw.randrange(1, 9))]
    program = device.program.reordered(order)
    real = recorded(replace(source, order=tuple(order)), conf=conf)
    (truth,) = prepare(real)
    size, kind = truth.free_plan.steps.size, truth.free_plan.steps.kind
    assert program.steps.size[program.steps.kind == 1].tolist() == size[kind == 1].tolist()
    assert program.numbers == tuple(step + 1 for step in order)


def test_edited_program_is_replayed_under_other_settings_too() -> None:
    conf = "expandable_segments:True"
    source = replace(PLAIN, **CASES["largest step first"])
    truth = replay(recorded(source), conf).devices[0].peak_reserved_bytes
    assert edited(recorded(PLAIN), "largest step first", conf=conf) == truth


def test_tune_searches_settings_for_the_edited_program() -> None:
    recording = recorded(PLAIN)
    tuning = tune(recording, edits=["largest step first"], confs=["expandable_segments:True"])
    peaks = {row.conf: row.peak_reserved_bytes for row in (tuning.baseline, *tuning.rows)}
    assert peaks[""] == edited(recording, "largest step first")


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ("empty cache", "is unknown; expected one of: empty-cache at ENTRY"),
        ("drop step 9", "training step 9 is not recorded; expected one of 1 to 5"),
        ("empty-cache at 123456", "entry 123456 does not exist; expected 0 to"),
        ("empty-cache before phase backward", "shows no backward phase"),
        ("preallocate 12 potatoes", "is unknown"),
        ("preallocate 99999999999GiB", "expected a size from 1 byte to less than 1 EiB"),
        ("preallocate 0GiB", "expected a size from 1 byte"),
        ("empty-cache every 0 steps", "expected 1 step or more"),
        ("repeat steps 3..2 x 2", "repeats nothing"),
        ("split batch in 2", "allocsim scale"),
    ],
)
def test_edit_that_cannot_apply_is_refused_in_one_sentence(edit: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replay_edited(recorded(PLAIN), [edit])


@pytest.mark.parametrize("edit", ["empty-cache every 1 steps", "empty-cache after step 1"])
def test_calls_by_step_are_refused_without_training_steps(edit: str) -> None:
    recorder = Recorder("1GiB")
    line = recorder.code("main.py", "main", 1)
    for _ in range(3):
        recorder.free(recorder.malloc(5 << 20, line), line)
    with pytest.raises(ConfigError, match="shows no training steps"):
        replay_edited(recorder.recording("plain", {}), [edit])


def test_order_of_two_steps_is_refused() -> None:
    with pytest.raises(ConfigError, match="shows 2 training steps; expected 3 or more"):
        replay_edited(recorded(Source((4, 5))), ["largest step first"])


def test_parse_edit_reads_every_listed_form() -> None:
    words = {"ENTRY": "3", "N": "2", "SIZE": "2GiB", "A..B": "1..2", "forward|backward|optimizer":
             "backward"}  # fmt: skip
    for form in EDIT_FORMS:
        text = " ".join(words.get(word, word) for word in form.split())
        assert parse_edit(text).text == text
        assert parse_edit(text).code


def test_replay_command_shows_edit_code_and_effect(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["replay", str(RAGGED), "--edit", "largest step first", "--no-cure"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "Edit            largest step first" in shown
    assert "less than without the" in " ".join(shown.split())
    assert main([*words, "--json"]) == 0
    (edit,) = json.loads(capsys.readouterr().out)["edits"]
    assert edit["edit"] == "largest step first"
    before = replay(load(RAGGED)).devices[0].peak_reserved_bytes
    assert edit["peak_reserved_bytes_without"] == [before]


def test_tried_edits_have_code_and_place() -> None:
    tried = try_edits(prepare(load(RAGGED)))
    texts = [trial.devices[0].edits[0].text for trial in tried]
    assert "empty-cache before phase backward" in texts
    assert [trial.peak_reserved_bytes for trial in tried] == sorted(
        trial.peak_reserved_bytes for trial in tried
    )
    places = {trial.place for trial in tried if "empty-cache" in trial.devices[0].edits[0].text}
    assert all(place.startswith("gpt.py:") for place in places)


def test_tune_command_prints_edits_on_request(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "run.npz"
    write_npz(recorded(PLAIN), path)
    assert main(["tune", str(path), "--edits", "--try", "expandable_segments:True"]) == 0
    assert "Edits " in capsys.readouterr().out
    assert main(["tune", str(path), "--edits", "--edit", "drop step 1"]) == 2
