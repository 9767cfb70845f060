"""Contents of a file, counted from the file and compared with a replay."""

from __future__ import annotations

import gzip
import hashlib
import json
import lzma
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim import CachingAllocator, load, replay, stats
from allocsim.errors import RecordingError
from allocsim.recording import form_of, read_snapshot, write_npz
from allocsim.results import Recording
from allocsim.units import MIB
from allocsim.workload import oom
from tests.recording.history import training_step

TRACES = Path(__file__).parents[2] / "traces"


def test_stats_of_a_real_recording_agree_with_its_run() -> None:
    path = TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz"
    truth = json.loads((TRACES / "gpt2-ragged-oom-torch2.15.json").read_text())
    found = stats(load(path))
    (device,) = found.devices
    assert device.peak_reserved_bytes == truth["peak_reserved"]
    assert device.reserved_bytes == truth["stats"]["reserved_bytes.all.current"]
    assert device.allocated_bytes == truth["stats"]["allocated_bytes.all.current"]
    assert device.blocks == truth["stats"]["allocation.all.current"]
    assert device.peak_requested_bytes == truth["stats"]["requested_bytes.all.peak"]
    assert sum(device.actions.values()) == device.entries == 26_064
    assert device.actions["oom"] == 1
    assert (device.begins, device.start_bytes) == ("empty", 0)
    assert found.releases == ("2.14", "2.15")
    assert found.conf == ""
    assert found.annotations == 24


def test_form_describes_the_bytes_on_disk(tmp_path: Path) -> None:
    plain = pickle.dumps(training_step().snapshot(), protocol=4)
    path = tmp_path / "run.pickle"
    path.write_bytes(plain)
    form = form_of(str(path))
    assert (form.size, form.kind, form.packing, form.protocol) == (len(plain), "pickle", "", 4)
    assert form.sha256 == hashlib.sha256(plain).hexdigest()
    assert str(form) == "pickle, protocol 4"
    path.write_bytes(gzip.compress(plain))
    assert str(form_of(str(path))) == "pickle, protocol 4, gzip"
    path.write_text(json.dumps({"segments": []}))
    assert str(form_of(str(path))) == "json"
    write_npz(read_snapshot("x", training_step().snapshot(), 1 << 20), path)
    assert str(form_of(str(path))) == "zip"
    path.write_bytes(lzma.compress(plain))
    assert str(form_of(str(path))) == "pickle, protocol 4, xz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("run.pickle", plain)
    assert str(form_of(str(path))) == "pickle, protocol 4, zip"


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"\x1f\x8b\x08\x00damaged", "is damaged as a gzip file"),
        (b"hello", "is text that begins with"),
    ],
)
def test_form_of_refuses_unknown_files_with_one_sentence(
    tmp_path: Path, content: bytes | None, sentence: str
) -> None:
    path = tmp_path / "x"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RecordingError, match=sentence):
        form_of(str(path))


def test_a_recording_that_no_file_holds_has_no_form() -> None:
    found = stats(oom())
    assert found.form is None
    assert repr(found).startswith("Stats(")
    assert "<table>" in found._repr_html_()


def test_stats_of_requests_only_gives_requested_bytes() -> None:
    found = stats(load(TRACES / "profiled" / "timeline-torch2.15.json.xz"))
    (device,) = found.devices
    assert (found.layout, found.releases, device.begins) == ("memory timeline", (), "requests")
    assert device.peak_reserved_bytes is None
    assert device.peak_requested_bytes == 26_147_840
    assert device.actions == {"alloc": 174, "free_requested": 150, "free_completed": 150}


def test_stats_gives_the_state_before_the_first_entry() -> None:
    def begins(snapshot: object) -> str:
        return stats(read_snapshot("x", snapshot, 1 << 20)).devices[0].begins

    whole = training_step().snapshot()
    assert begins(whole) == "empty"
    state = training_step().snapshot()
    state["device_traces"] = []
    assert begins(state) == "state"
    late = training_step().snapshot()
    del late["device_traces"][0][:4]
    assert begins(late) == "mid_run"
    broken = training_step().snapshot()
    broken["device_traces"][0][4]["addr"] += 512
    found = stats(read_snapshot("x", broken, 1 << 20)).devices[0]
    assert (found.begins, found.peak_reserved_bytes, found.start_bytes) == ("unsound", None, None)


def test_peaks_include_memory_from_before_the_first_entry() -> None:
    late = training_step().snapshot()
    del late["device_traces"][0][:4]
    (device,) = stats(read_snapshot("x", late, 1 << 20)).devices
    assert device.start_segments == 2
    assert device.start_bytes == device.peak_reserved_bytes == 22 * MIB
    assert device.peak_requested_bytes == 2000 + 3 * MIB


def test_stats_lists_each_device() -> None:
    first = CachingAllocator("1GiB", record_history=True)
    second = CachingAllocator("1GiB", record_history=True, device=1)
    first.malloc(MIB)
    second.malloc(30 * MIB, stream=4096)
    one, other = first.snapshot(), second.snapshot()
    one["segments"] += other["segments"]
    one["device_traces"].append(other["device_traces"][1])
    found = stats(read_snapshot("x", one, 1 << 20))
    assert [(d.device, d.entries, d.reserved_bytes) for d in found.devices] == [
        (0, 2, 2 * MIB),
        (1, 2, 30 * MIB),
    ]


@given(st.lists(st.tuples(st.integers(1, 5 * MIB), st.booleans()), min_size=1, max_size=30))
def test_the_peaks_are_those_of_the_model(requests: list[tuple[int, bool]]) -> None:
    gpu = CachingAllocator(record_history=True)
    for size, is_freed in requests:
        block = gpu.malloc(size)
        if is_freed:
            gpu.free(block)
    result = gpu.memory_stats()
    (device,) = stats(read_snapshot("x", gpu.snapshot(), 1 << 20)).devices
    assert device.peak_reserved_bytes == result["reserved_bytes.all.peak"]
    assert device.peak_requested_bytes == result["requested_bytes.all.peak"]
    assert device.allocated_bytes == result["allocated_bytes.all.current"]
    assert device.requested_bytes == result["requested_bytes.all.current"]
    assert device.blocks == result["allocation.all.current"]
    assert device.segments == result["segment.all.current"]


def test_figures_are_those_of_the_replay(recorded: Callable[..., Recording]) -> None:
    def program(gpu: CachingAllocator) -> None:
        held = [gpu.malloc(n * MIB) for n in (3, 30, 7)]
        gpu.free(held[1])
        gpu.empty_cache()
        gpu.malloc(50 * MIB)

    recording = recorded(program, "1GiB")
    (device,) = stats(recording).devices
    (run,) = replay(recording).devices
    assert device.peak_reserved_bytes == run.peak_reserved_bytes
