"""Reading a pickle's bytes directly gives the same result as reading objects, or nothing."""

from __future__ import annotations

import gzip
import importlib
import io
import pickle
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from allocsim.errors import RecordingError
from allocsim.recording import Recording, load, pickle_rows, straight
from allocsim.recording.packed import Packed
from allocsim.recording.pickle_rows import OtherForm
from allocsim.recording.snapshot import read_snapshot
from allocsim.recording.straight import read_straight
from allocsim.recording.unpickle import unpickle
from tests.recording.alike import assert_alike
from tests.recording.history import BASE, History, Plain, training_step

ALL = 10**9
LOAD = importlib.import_module("allocsim.recording.files")
TRACES = Path(__file__).parents[2] / "traces"
SHARED = Path(__file__).parents[3] / "shared" / "recordings"
FILES = [*sorted(TRACES.glob("*.pickle.gz")), *sorted(SHARED.glob("*.pickle"))]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make all limits of the reader so small that a few entries reach them."""
    monkeypatch.setattr(pickle_rows, "_STRETCH", 3000)
    monkeypatch.setattr(pickle_rows, "_RESERVE", 400)
    monkeypatch.setattr(straight, "_SHORTEST_RUN", 1)


def by_objects(data: bytes, folder: Path) -> Recording:
    path = folder / "a.pickle"
    path.write_bytes(data)
    with path.open("rb") as file:
        return read_snapshot("a", unpickle("a", file), len(data))


def by_bytes(data: bytes) -> Recording:
    return read_snapshot("a", read_straight(io.BytesIO(data), ALL), len(data))


def packed_rows(data: bytes) -> int:
    """Return the number of entries that were read without creating objects."""
    value: Any = read_straight(io.BytesIO(data), ALL)
    return sum(len(each) for each in value["device_traces"] if isinstance(each, Packed))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name.partition(".")[0])
def test_read_straight_equals_unpickle_for_real_recordings(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pickle_rows, "_STRETCH", 1 << 18)
    monkeypatch.setattr(pickle_rows, "_RESERVE", 1 << 16)
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    try:
        theirs = by_objects(data, tmp_path)
    except RecordingError:
        with pytest.raises((OtherForm, RecordingError)):
            by_bytes(data)
        return
    assert_alike(by_bytes(data), theirs)
    # Another program's recording, whose entries have other fields, is read as objects.
    if sum(map(len, theirs.devices)) > 1000 and path.stem != "not-a-recording":
        assert packed_rows(data) == sum(map(len, theirs.devices))


FRAMES = [{"name": f"f{i}", "filename": f"{i}.py", "line": i} for i in range(6)]
NUMBER = st.sampled_from(
    [0, 1, 255, 256, 65535, 65536, (1 << 31) - 1, 1 << 31, 1 << 47, (1 << 63) - 1]
)
STACKS = st.lists(st.sampled_from(FRAMES), max_size=4)
SHARED_STACKS = [FRAMES[:3], FRAMES[2:4], FRAMES[5:], []]


@st.composite
def rows(draw: st.DrawFn) -> Plain:
    """Draw an entry, mostly as PyTorch writes it."""
    row: Plain = {
        "action": draw(st.sampled_from(["alloc", "free_requested", "segment_alloc", "oom"])),
        "addr": draw(NUMBER | st.just((1 << 64) - 1)),
        "size": draw(NUMBER),
        "stream": draw(NUMBER),
        "time_us": draw(NUMBER),
        "user_metadata": draw(st.sampled_from(["", "a", "}\u0094(h\u0000h\u0001"])),
        "pool_id": draw(
            st.sampled_from([(0, 0), (0, 1), (300, 5)])
            | st.builds(lambda n: tuple([n, 0]), st.integers(0, 2))  # noqa: C409
        ),
        "frames": draw(st.sampled_from(SHARED_STACKS) | STACKS),
    }
    odd = draw(st.integers(0, 12))
    if odd == 0 and row["action"] == "oom":
        row["device_free"] = row.pop("addr")
    if odd == 1:
        row["internal_metadata"] = draw(st.sampled_from(["x", "y"]))
    if odd == 2:
        del row[draw(st.sampled_from(["user_metadata", "pool_id", "time_us", "frames"]))]
    return row


def pickled(value: object, *, protocol: int, in_c: bool, frame: int) -> bytes:
    if in_c:
        return pickle.dumps(value, protocol)
    file = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pickle._Framer, "_FRAME_SIZE_TARGET", frame)  # type: ignore[attr-defined]
        pickle._Pickler(file, protocol).dump(value)
    return file.getvalue()


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    traces=st.lists(st.lists(rows(), max_size=25), max_size=3),
    copies=st.integers(1, 5),
    form=st.tuples(st.integers(2, 5), st.booleans(), st.integers(4, 400)),
)
def test_read_straight_equals_unpickle_for_any_rows_and_protocol(
    traces: list[list[Plain]], copies: int, form: tuple[int, bool, int], tmp_path: Path
) -> None:
    protocol, in_c, frame = form
    snapshot = training_step().snapshot()
    snapshot["device_traces"] = [[dict(row) for row in trace * copies] for trace in traces]
    data = pickled(snapshot, protocol=protocol, in_c=in_c, frame=frame)
    if protocol < 4:
        with pytest.raises(OtherForm):
            by_bytes(data)
        return
    try:
        theirs = by_objects(data, tmp_path)
    except RecordingError:
        with pytest.raises((OtherForm, RecordingError)):
            by_bytes(data)
        return
    try:
        mine = by_bytes(data)
    except OtherForm:  # an entry without frames or time is not in PyTorch's format
        return
    assert_alike(mine, theirs)


def long_history() -> Plain:
    history = History()
    for size in range(1, 300):
        history.free(history.alloc(size * 700))
    return history.snapshot()


def test_lists_that_pickle_writes_in_batches_are_read(tmp_path: Path) -> None:
    snapshot = long_history()
    entries = snapshot["device_traces"][0]
    snapshot["device_traces"][0] = [dict(row) for row in (entries + entries)[:1700]]
    data = pickle.dumps(snapshot, 4)
    assert packed_rows(data) > 1000
    assert_alike(by_bytes(data), by_objects(data, tmp_path))


@pytest.mark.parametrize(
    ("seed", "times"), [(11, 80), pytest.param(12, 2000, marks=pytest.mark.slow)]
)
def test_changed_byte_has_the_same_effect_on_both_readers(
    seed: int, times: int, tmp_path: Path
) -> None:
    """If both readers accept a file they agree; if one refuses it, the other may not accept it."""
    source = random.Random(seed)
    snapshot = training_step().snapshot()
    snapshot["device_traces"][0] = [dict(row) for row in snapshot["device_traces"][0] * 4]
    whole = pickled(snapshot, protocol=4, in_c=False, frame=300)
    taken = 0
    for _ in range(times):
        data = bytearray(whole)
        for _ in range(source.randint(1, 2)):
            data[source.randrange(2, len(data))] = source.randrange(256)
        try:
            mine = by_bytes(bytes(data))
        except (OtherForm, RecordingError):
            continue
        taken += 1
        assert_alike(mine, by_objects(bytes(data), tmp_path))
    assert taken > times // 30


def test_text_that_looks_like_a_row_is_not_read_as_one(tmp_path: Path) -> None:
    snapshot = long_history()
    data = pickle.dumps(snapshot, 4)
    row = data[data.index(b"}\x94(", len(data) // 2) :][:60]
    for entry in snapshot["device_traces"][0][50:60]:
        entry["user_metadata"] = row.decode("latin-1")
    data = pickle.dumps(snapshot, 4)
    assert_alike(by_bytes(data), by_objects(data, tmp_path))


def shared_list() -> Plain:
    snapshot = long_history()
    snapshot["device_traces"] = [snapshot["device_traces"][0]] * 2
    return snapshot


def elsewhere() -> Plain:
    snapshot = long_history()
    return snapshot | {"also": snapshot["device_traces"][0]}


def as_annotations() -> Plain:
    snapshot = long_history()
    return snapshot | {"external_annotations": snapshot.pop("device_traces")[0]}


def row_as_frame() -> Plain:
    snapshot = long_history()
    entries = snapshot["device_traces"][0]
    entries[-1]["frames"] = [entries[100]]
    return snapshot


def entries_as_stack() -> Plain:
    """Return a list that its own rows refer to before it is complete."""
    snapshot = long_history()
    entries = snapshot["device_traces"][0]
    for entry in entries[200:]:
        entry["frames"] = entries
    return snapshot


@pytest.mark.parametrize(
    "make", [shared_list, elsewhere, as_annotations, row_as_frame, entries_as_stack]
)
def test_read_straight_declines_rows_with_other_references(make: Any) -> None:
    with pytest.raises(OtherForm):
        by_bytes(pickle.dumps(make(), 4))


def test_read_straight_declines_a_list_that_grows_after_a_reference() -> None:
    """The memo has a single list, so later items would also belong to earlier entries."""
    data = pickle.dumps({**training_step().snapshot(), "last": FRAMES[0]}, 4)
    assert by_bytes(data).devices
    # Fetch memo 2, a container of the snapshot, append to it, and continue.
    grown = data[:-2] + b"\x8c\x01xh\x02(Neu."
    header = (len(grown) - 11).to_bytes(8, "little")
    with pytest.raises(OtherForm):
        by_bytes(grown[:3] + header + grown[11:])


def test_read_straight_declines_too_many_operations() -> None:
    data = pickle.dumps(long_history(), 4)
    with pytest.raises(OtherForm):
        read_straight(io.BytesIO(data), 100)


def test_load_reads_a_large_pickle_to_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object) -> None:
        raise AssertionError("read as objects")

    snapshot = long_history()
    first = snapshot["device_traces"][0]
    snapshot["device_traces"][0] = [dict(row) for row in first * 4]
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(snapshot, 4))
    monkeypatch.setattr(LOAD, "unpickle", never)
    monkeypatch.setattr(LOAD, "_LARGE", 1)
    assert len(load(path).device(0)) == 4 * len(first)
    assert load(path).device(0)[1].addr == BASE


def test_invalid_entry_of_a_large_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    snapshot = long_history()
    snapshot["device_traces"][0][500]["size"] = -1
    path = tmp_path / "a.pickle"
    path.write_bytes(pickle.dumps(snapshot, 4))
    monkeypatch.setattr(LOAD, "_LARGE", 1)
    with pytest.raises(RecordingError, match=r"entry 500: .* has size -1"):
        load(path)


def test_rows_of_pinned_memory_are_read_to_columns_too() -> None:
    snapshot = training_step().snapshot()
    rows = [dict(row) for row in snapshot["device_traces"][0] for _ in range(9)]
    snapshot |= {"device_traces": [rows], "host_traces": [dict(row) for row in rows]}
    data = pickle.dumps(snapshot, protocol=4)
    value: Any = read_straight(io.BytesIO(data), ALL)
    assert isinstance(value["host_traces"], Packed)
    assert_alike(by_bytes(data), read_snapshot("a", snapshot, len(data)))
