"""Texts of an explained recording."""

from __future__ import annotations

import dataclasses
import pickle

import pytest

from allocsim import CachingAllocator, OutOfMemoryError, load
from allocsim.analysis.explain import DeviceExplanation, explain_recording
from allocsim.analysis.explain.shortage import CAUSES
from allocsim.report.explain import document as explanation_document
from allocsim.report.explain import text as explanation_text
from allocsim.simulation import Run
from allocsim.units import MIB

Explained = tuple[Run, DeviceExplanation]


@pytest.fixture(scope="module")
def explained(tmp_path_factory: pytest.TempPathFactory) -> Explained:
    """Return a failed request of 90 MiB on a device of 100 MiB, because of 30 blocks of 3 MiB."""
    gpu = CachingAllocator("100MiB", record_history=True)
    gpu.free(gpu.malloc(96 * MIB))
    for _ in range(30):
        gpu.malloc(3 * MIB)
    with pytest.raises(OutOfMemoryError):
        gpu.malloc(90 * MIB)
    path = tmp_path_factory.mktemp("explained") / "snapshot.pickle"
    path.write_bytes(pickle.dumps(gpu.snapshot(), protocol=4))
    run, (device,) = explain_recording(load(str(path)))
    return run, device


def words(run: Run, device: DeviceExplanation) -> str:
    return " ".join(explanation_text(run, [device]).split())


@pytest.mark.parametrize("cause", CAUSES)
def test_explanation_has_a_sentence_for_every_cause(explained: Explained, cause: str) -> None:
    run, device = explained
    (shortage,) = device.shortages
    other = dataclasses.replace(device, shortages=(dataclasses.replace(shortage, cause=cause),))
    text = explanation_text(run, [other])
    assert f"Verdict         {cause}: " in text
    assert max(map(len, text.splitlines())) <= 80
    assert explanation_document(run, [other])["ooms"][0]["cause"] == cause


def test_explanation_counts_the_blockers_left_out(explained: Explained) -> None:
    run, device = explained
    text = words(run, device)
    assert "28 live blocks, 84.00 MiB in all" in text
    assert "and 16 smaller ones" in text
    assert len(explanation_document(run, [device])["ooms"][0]["blockers"]) == 28


def test_explanation_counts_the_errors_left_out(explained: Explained) -> None:
    run, device = explained
    many = dataclasses.replace(device, shortages=device.shortages * 5, advice=device.advice * 5)
    text = words(run, many)
    assert text.count("Out of memory") == 3
    assert "(2 earlier errors; --json lists them all)" in text
    assert len(explanation_document(run, [many])["ooms"]) == 5


def test_explanation_distinguishes_no_blockers_from_no_sufficient_set(explained: Explained) -> None:
    run, device = explained
    (shortage,) = device.shortages
    assert shortage.findings is not None
    for late, expected in (
        (0, "the request fails even without all of them"),
        (MIB, "would succeed now"),
    ):
        findings = dataclasses.replace(shortage.findings, blockers=None, late_bytes=late)
        other = dataclasses.replace(shortage, findings=findings, blockers=())
        assert expected in words(run, dataclasses.replace(device, shortages=(other,)))


def test_text_of_explain_separates_the_devices(explained: Explained) -> None:
    run, device = explained
    second = dataclasses.replace(
        device, device_run=dataclasses.replace(device.device_run, device=1), shortages=(), advice=()
    )
    text = explanation_text(run, [device, second])
    assert "== device 0 ==" in text
    assert "== device 1 ==" in text
    assert "no request failed; allocsim risk reports how close one came" in text
