"""Texts of a replay for runs that are in no recording of the repository."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from allocsim.analysis.explain import Cure, Shortage, shortages_of
from allocsim.analysis.explain.shortage import CAUSES
from allocsim.recommend import Offer, Recommendation
from allocsim.recording import load
from allocsim.replaying import Trial, replay
from allocsim.report.replay import document as replay_document
from allocsim.report.replay import text as replay_text
from allocsim.report.run_sections import verdict_sentence
from allocsim.simulation import Fidelity, Mismatch, Run, Setting, Timeline
from allocsim.units import GIB

OOM = Path(__file__).parents[2] / "traces" / "gpt2-ragged-oom-torch2.15.pickle.gz"


@pytest.fixture(scope="module")
def run() -> Run:
    """Return a replay that ended out of memory."""
    return replay(load(OOM))


@pytest.fixture(scope="module")
def shortage(run: Run) -> Shortage:
    """Return its only error."""
    return shortages_of(run.devices[0])[0]


def lines_of(run: Run, *shortages: Shortage) -> list[str]:
    """Return the report without a cure."""
    return replay_text(run, {0: shortages}).splitlines()


def with_fidelity(run: Run, fidelity: Fidelity | None) -> Run:
    """Return the run with another fidelity of its first device."""
    device = dataclasses.replace(run.devices[0], fidelity=fidelity)
    return dataclasses.replace(run, devices=(device,))


def test_text_shows_the_first_difference_from_the_recording(run: Run) -> None:
    mismatch = Mismatch(812, "alloc of 512 bytes at 0x200", "alloc of 512 bytes at 0x400")
    lines = lines_of(with_fidelity(run, Fidelity(100, 99, 10, 9, 300, 200, mismatch)))
    assert "Proof           99 of 100 addresses as recorded" in lines
    assert "                NOT all addresses as recorded" in lines
    assert "                the first difference is at entry 812:" in lines
    assert "  recorded      alloc of 512 bytes at 0x200" in lines
    assert "  replayed      alloc of 512 bytes at 0x400" in lines


def test_text_shows_a_difference_in_the_final_segments(run: Run) -> None:
    mismatch = Mismatch(None, "no segment", "one at 0x400")
    lines = lines_of(with_fidelity(run, Fidelity(100, 100, 10, 9, 300, 300, mismatch)))
    assert "                all addresses as recorded" in lines
    assert "                the first difference is in the final segments:" in lines


def test_text_says_that_a_replay_has_nothing_to_compare_with(run: Run) -> None:
    assert "nothing to compare" in " ".join(lines_of(with_fidelity(run, None)))


@pytest.mark.parametrize("cause", CAUSES)
def test_text_has_a_sentence_for_every_cause(run: Run, shortage: Shortage, cause: str) -> None:
    lines = lines_of(run, dataclasses.replace(shortage, cause=cause))
    verdict = [line for line in lines if line.startswith("Verdict")]
    assert len(verdict) == 1
    assert max(map(len, lines)) <= 80


def test_text_counts_the_errors_left_out(run: Run, shortage: Shortage) -> None:
    lines = lines_of(run, *[shortage] * 5)
    assert sum(line.startswith("Out of memory") for line in lines) == 3
    assert any("2 earlier errors" in line for line in lines)


def test_text_separates_the_devices(run: Run) -> None:
    second = dataclasses.replace(run.devices[0], device=1)
    lines = lines_of(dataclasses.replace(run, devices=(run.devices[0], second)))
    assert "== device 0 ==" in lines
    assert "== device 1 ==" in lines


def test_text_escapes_control_characters(run: Run) -> None:
    path = "evil\x1b[2J\u202e.pickle"
    text = replay_text(dataclasses.replace(run, path=path), {})
    assert "\x1b" not in text
    assert r"evil\x1b[2J\u202e.pickle" in text


def test_document_has_the_counts_of_the_text(run: Run, shortage: Shortage) -> None:
    document = replay_document(run, {0: [shortage]})
    peak = document["devices"][0]["peak"]
    assert peak["reserved_bytes"] - peak["active_bytes"] == peak["idle_bytes"]
    assert document["devices"][0]["ooms"][0]["idle_bytes"] == shortage.idle_bytes


def test_text_gives_unused_memory_at_peak_allocation_and_at_its_maximum(
    run: Run, shortage: Shortage
) -> None:
    """Reserved memory is constant here, so unused memory must be reported at two other moments."""
    flat = Timeline(np.array([1, 2, 3]), np.array([1, 9, 4]) * GIB, np.array([10, 10, 10]) * GIB)
    device = dataclasses.replace(run.devices[0], timeline=flat)
    output = lines_of(dataclasses.replace(run, devices=(device,)), shortage)
    idle = [line[16:] for line in output if line.startswith("Unused")]
    assert idle == ["1024.00 MiB at peak allocation, after entry 2"]
    assert "                9.00 GiB at most, after entry 1" in output
    assert "At peak allocation, 1024.00 MiB of 10.00 GiB reserved were unused." in (
        verdict_sentence(device, ())
    )


def test_text_claims_no_fit_for_an_unknown_device(run: Run) -> None:
    known = run.devices[0]
    unknown = dataclasses.replace(known, device_memory=None)
    assert verdict_sentence(known, ()).startswith("it fits: no request failed")
    assert "fits" not in verdict_sentence(unknown, ())
    assert "is unknown" in verdict_sentence(unknown, ())


def test_text_mentions_pytorchs_message_only_if_there_is_one(run: Run, shortage: Shortage) -> None:
    assert any("PyTorch's message:" in line for line in lines_of(run, shortage))
    silent = dataclasses.replace(shortage, oom=dataclasses.replace(shortage.oom, message=""))
    assert not any("PyTorch's message" in line for line in lines_of(run, silent))


def test_table_of_settings_has_no_memory_of_a_failed_replay(run: Run) -> None:
    failed = Trial(conf="max_split_size_mb:64", oom_entry=7, peak_reserved_bytes=GIB)
    cure = Cure(0, None, Trial(), (failed,), None, None)
    offer = Offer(Setting(""), (Trial(),))
    text = replay_text(run, {}, (Recommendation(offer), (cure,)))
    (line,) = (line for line in text.splitlines() if "max_split_size_mb:64" in line)
    assert line.split()[1:] == ["entry", "7", "-", "-"]
