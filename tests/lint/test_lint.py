"""Findings of lint in damaged recordings, and none in valid ones."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim import CachingAllocator
from allocsim.analysis.lint import CHECKS, Finding, Lint, lint
from allocsim.recording import Provenance, Recording, load, read_snapshot, write_npz
from allocsim.units import MIB
from tests.recording.history import STACK, History
from tests.recordings import phantom_recordings

TRACES = Path(__file__).parents[2] / "traces"
SHARED = Path(__file__).parents[3] / "shared" / "recordings"
DAY_US = 24 * 3600 * 1_000_000

Plain = dict[str, Any]


def run() -> History:
    """Return a history with two blocks that live to the end and a freed one."""
    history = History()
    history.alloc(3 * MIB)
    history.free(history.alloc(1000))
    history.alloc(2000)
    return history


def snapshot(history: History) -> Plain:
    """Return the snapshot of the newest release, without options and with stacks."""
    made = history.snapshot()
    made["allocator_settings"] = CachingAllocator().snapshot()["allocator_settings"]
    return made


def linted(made: Plain, **options: Any) -> Lint:
    return lint(read_snapshot("run.pickle", made, 1 << 20), **options)


def only(found: Lint, check: str) -> Finding:
    (finding,) = [each for each in found.findings if each.check == check]
    return finding


def checks(found: Lint) -> list[str]:
    return [finding.check for finding in found.findings]


# -- sound recordings ----------------------------------------------------------------------


def test_a_whole_recording_passes_with_nothing_found() -> None:
    found = linted(snapshot(run()))
    assert found.findings == ()
    assert found.passed
    assert found.headline() == "passed: nothing found"


@pytest.mark.parametrize("path", sorted(TRACES.glob("*.pickle.gz")), ids=lambda path: path.name)
def test_real_recordings_from_an_empty_device_have_no_findings(path: Path) -> None:
    assert checks(lint(load(path))) == []


@given(
    st.lists(st.tuples(st.integers(1, 30 * MIB), st.integers(0, 2), st.booleans()), max_size=25),
    st.sampled_from(["", "expandable_segments:True", "max_split_size_mb:30"]),
    st.sampled_from(["2.3", "2.9", "2.15"]),
    st.integers(0, 40),
)
def test_runs_of_the_model_raise_no_alarm_and_lose_their_beginning_at_most(
    requests: list[tuple[int, int, bool]], conf: str, torch: str, lost: int
) -> None:
    gpu = CachingAllocator("1GiB", conf, torch_version=torch, record_history=True)
    for size, stream, is_freed in requests:
        block = gpu.malloc(size, stream=4096 * stream)
        if is_freed:
            gpu.free(block)
    gpu.empty_cache()
    made = gpu.snapshot()
    entries = made["device_traces"][0]
    whole = linted(made) if requests else None
    assert whole is None or checks(whole) == ["stacks"]
    made["device_traces"][0] = rest = entries[lost:]
    if sum(entry["action"] in ("alloc", "free_requested") for entry in rest) > 1:
        found = linted(made)
        assert set(checks(found)) <= {"mid_run", "stacks", "ring"}
        assert not [each for each in found.findings if each.severity == "error"]


@pytest.mark.slow
def test_lint_reports_the_only_recording_that_starts_mid_run() -> None:
    found = {
        path.name: checks(lint(load(path)))
        for path in phantom_recordings()
        if path.name.endswith(".npz.gz")
    }
    assert len(found) > 100
    result = {name: names for name, names in found.items() if names}
    assert result == {"warm_start-torch2.15.npz.gz": ["mid_run"]}


OF_OTHERS = {
    "attention-state-torch2.1": ["contents", "no_settings"],
    "attention-torch2.6": [],
    "decomfl-torch2.9": [],
    "flexgen-oom-state-torch2.0": ["contents", "no_settings"],
    "lm-compiled-torch2.10": ["mid_run"],
    "lm-forward-bf16-torch2.6": ["mid_run"],
    "lm-forward-fp32-torch2.6": ["mid_run"],
    "lm-forward-full-card-torch2.6": ["mid_run", "ring"],
    "lm-forward-torch2.11": ["mid_run"],
    "lm-training-512-torch2.11": ["mid_run"],
    "not-a-recording": ["segments", "layout", "sums", "no_settings"],
    "one-event-torch2.1": ["ring", "mid_run"],
    "vllm-private-pools-state": ["contents"],
}
"""Recordings of other people with their expected findings (see the README beside them)."""


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs other people's recordings")
@pytest.mark.parametrize("name", OF_OTHERS)
def test_third_party_recordings_have_the_expected_findings(name: str) -> None:
    assert checks(lint(load(SHARED / f"{name}.pickle"))) == OF_OTHERS[name]


def test_lint_warns_of_what_a_file_of_requests_lacks() -> None:
    found = lint(load(TRACES / "profiled" / "timeline-torch2.15.json.xz"))
    assert checks(found) == ["reader"]
    assert not found.passed


def test_lint_notes_another_build_and_refuses_one_not_modelled() -> None:
    made = snapshot(run())
    made["device_traces"][0][1]["frames"] = [{**STACK[0], "name": "c10::hip::malloc"}]
    assert only(linted(made), "backend").severity == "note"
    made["device_traces"][0][1]["frames"] = [{**STACK[0], "filename": "torch_npu/npu.py"}]
    assert only(linted(made), "backend").severity == "error"


# -- lost entries -------------------------------------------------------------------------


def test_blocks_with_a_stack_but_no_entry_show_lost_entries() -> None:
    made = snapshot(run())
    del made["device_traces"][0][:2]
    found = linted(made)
    assert checks(found) == ["mid_run", "ring"]
    ring = only(found, "ring")
    assert (ring.severity, ring.device, ring.entry) == ("warning", 0, 0)
    assert ring.text.startswith("1 of 1 blocks (3.00 MiB) from before the first entry have a stack")
    assert ring.value == "segment_alloc of 2097152 bytes at 0x7f0001400000 on stream 0"
    assert not found.passed


def test_blocks_without_a_stack_show_no_lost_entries() -> None:
    made = snapshot(run())
    del made["device_traces"][0][:2]
    for segment in made["segments"]:
        for block in segment["blocks"]:
            block["frames"] = [] if block["size"] == 3 * MIB else block["frames"]
    assert checks(linted(made)) == ["mid_run"]


def test_free_requested_before_the_first_entry_suggests_lost_entries() -> None:
    history = run()
    history.free(history.alloc(5000))
    made = snapshot(history)
    entries = made["device_traces"][0]
    del entries[: len(entries) - 1]
    entries.insert(0, {**entries[0], "action": "snapshot"})
    for segment in made["segments"]:
        for block in segment["blocks"]:
            block["frames"] = []
    ring = only(linted(made), "ring")
    assert "may have lost its beginning" in ring.text
    assert ring.value.startswith("free_completed of 5000 bytes")


# -- contradictions ------------------------------------------------------------------------


def test_free_without_allocation_is_reported_with_its_entry() -> None:
    made = snapshot(run())
    entries = made["device_traces"][0]
    (free,) = [i for i, entry in enumerate(entries) if entry["action"] == "free_requested"]
    entries[free]["addr"] += 512
    found = linted(made)
    finding = only(found, "free_without_allocation")
    assert (finding.severity, finding.entry) == ("error", free)
    assert finding.value.startswith("free_requested of 1000 bytes at 0x7f0001400200")
    assert finding.meaning == CHECKS["free_without_allocation"].meaning
    assert not found.passed


def test_wrong_sum_is_reported_with_the_sum_of_the_blocks() -> None:
    made = snapshot(run())
    made["segments"][0]["allocated_size"] += 512
    made["segments"][1]["active_size"] = "many"
    found = linted(made)
    assert checks(found) == ["sums"]
    finding = only(found, "sums")
    assert finding.value == str(3 * MIB + 512)
    assert finding.text == (
        f"2 sums of segments are wrong, first allocated_size of the segment at 0x7f0000000000: "
        f"{3 * MIB + 512} recorded, {3 * MIB} in its blocks"
    )


def test_column_file_keeps_the_defects_of_its_source(tmp_path: Path) -> None:
    made = snapshot(run())
    made["segments"][0]["allocated_size"] += 512
    del made["device_traces"][0][:2]
    source = read_snapshot("run.pickle", made, 1 << 20)
    write_npz(source, tmp_path / "run.npz")
    assert lint(load(tmp_path / "run.npz")).findings == lint(source).findings


def test_lint_distinguishes_two_runs_in_one_file_from_damage() -> None:
    made = snapshot(run())
    entries = made["device_traces"][0]
    made["device_traces"][0] = [*entries, *(dict(entry) for entry in entries)]
    found = linted(made)
    finding = only(found, "processes")
    assert finding.entry == len(entries)
    assert finding.text.startswith(f"entries 0 to {len(entries) - 1} and {len(entries)} to ")
    assert found.findings[0].severity == "error"


def test_devices_of_one_process_do_not_share_addresses() -> None:
    made = snapshot(run())
    other = [{**segment, "device": 1} for segment in deepcopy(made["segments"])]
    made["segments"] += other
    made["device_traces"][1] = made["device_traces"][0]
    found = linted(made)
    assert checks(found) == ["processes"]
    assert "device 0 and device 1 both have a segment at 0x7f0000000000" in found.findings[0].text
    for segment in other:
        segment["address"] += 1 << 40
        for block in segment["blocks"]:
            block["address"] += 1 << 40
    made["device_traces"][1] = [
        {**entry, "addr": entry["addr"] + (1 << 40)} for entry in made["device_traces"][0]
    ]
    assert checks(linted(made)) == []


def test_snapshot_without_an_expected_field_gets_a_layout_warning() -> None:
    made = snapshot(run())
    del made["external_annotations"]
    assert only(linted(made), "layout").severity == "warning"


# -- time, device, stacks ------------------------------------------------------------------


def test_lint_notes_a_clock_that_was_set() -> None:
    made = snapshot(run())
    for entry in made["device_traces"][0][4:]:
        entry["time_us"] += 3 * DAY_US
    made["device_traces"][0][6]["time_us"] = 7
    found = linted(made)
    assert found.passed
    assert checks(found) == ["clock", "clock"]
    texts = " ".join(finding.text for finding in found.findings)
    assert "time_us goes back 1 times, first at entry 6" in texts
    assert "time_us jumps ahead once, first at entry 4 by 3.0 days" in texts


def test_lint_accepts_a_pause_of_an_hour() -> None:
    made = snapshot(run())
    for entry in made["device_traces"][0][4:]:
        entry["time_us"] += 3600 * 1_000_000
    assert linted(made).findings == ()


def test_errors_with_two_device_sizes_show_another_holder() -> None:
    history = run()
    history.oom(64 * MIB, 10 * MIB)
    history.oom(64 * MIB, 4 * MIB)
    finding = only(linted(snapshot(history)), "device_memory")
    assert finding.text == (
        "free plus reserved memory is 26.00 MiB at the error at entry 8, and 32.00 MiB at the "
        "previous error"
    )
    same = run()
    same.oom(64 * MIB, 10 * MIB)
    same.oom(64 * MIB, 10 * MIB)
    assert linted(snapshot(same)).findings == ()


def test_lint_notes_requests_without_stacks() -> None:
    made = snapshot(run())
    for entry in made["device_traces"][0]:
        entry["frames"] = []
    found = linted(made)
    assert checks(found) == ["stacks"]
    assert found.passed
    made["device_traces"][0][1]["frames"] = STACK
    assert linted(made).findings == ()


# -- release and provenance ------------------------------------------------------------------


def recording(made: Plain, **changes: Any) -> Recording:
    return replace(read_snapshot("run.pickle", made, 1 << 20), **changes)


def test_lint_reports_a_release_with_other_workspaces() -> None:
    old = run().snapshot("2.6")
    old["allocator_settings"] |= {"max_split_size": -1, "garbage_collection_threshold": 0.0}
    old["allocator_settings"] |= {"PYTORCH_CUDA_ALLOC_CONF": "", "roundup_power2_divisions": {}}
    asked = linted(old, torch_version="2.15")
    assert checks(asked) == ["release", "workspaces"]
    assert "2.15 allocates and frees cuBLAS's workspaces" in asked.findings[1].text
    assert asked.findings[1].value == "2.15"
    assert checks(linted(old, torch_version="2.9")) == ["release"]
    assert linted(old, torch_version="2.6").findings == ()
    assert linted(old).findings == ()


def test_lint_notes_what_a_phantom_gpu_cannot_know() -> None:
    made = Provenance(torch_version="2.15.0", is_phantom=True, reads_back="a.py:3", guessed="cuDNN")
    found = lint(recording(snapshot(run()), provenance=made))
    assert checks(found) == ["provenance", "provenance"]
    assert found.passed


def test_findings_come_in_the_order_of_severity_and_each_is_there_once() -> None:
    made = snapshot(run())
    made["device_traces"][0][1]["addr"] += 7
    made["segments"][0]["allocated_size"] = 1
    made["device_traces"][0][3]["time_us"] = 1
    found = linted(made)
    ranks = ["error", "warning", "note"]
    severities = [ranks.index(finding.severity) for finding in found.findings]
    assert severities == sorted(severities)
    assert len(set(found.findings)) == len(found.findings)
    assert found.headline() == "failed: 1 error, 1 warning, 1 note"


def test_finding_has_a_readable_representation(recorded: Callable[..., Recording]) -> None:
    found = lint(recorded(lambda gpu: gpu.malloc(1 << 20), "1GiB"), "max_split_size_mb=64")
    assert repr(found).startswith("Lint(failed: 1 error")
    assert "<table>" in found._repr_html_()
