"""Snapshots and columns are read back as they were written."""

from __future__ import annotations

import io
import pickletools
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from numpy.testing import assert_array_equal

from allocsim.recording import Recording, load
from allocsim.recording.export import snapshot_of
from allocsim.report.formats import FORMATS, write_as
from tests.report.formats.recordings import recordings

VIEWER = frozenset(
    {
        *("PROTO", "FRAME", "STOP", "MARK", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET"),
        *("LONG_BINGET", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1"),
        *("BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "EMPTY_LIST", "APPEND", "APPENDS", "LIST"),
        *("EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "EMPTY_DICT", "SETITEM"),
        *("SETITEMS", "DICT"),
    }
)
"""Opcodes that the page of PyTorch's viewer, MemoryViz, reads."""


def through(name: str, suffix: str, recording: Recording) -> Recording:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"a{suffix}"
        write_as(FORMATS[name], recording, path)
        return load(path)


def sound(recording: Recording) -> Any:
    """Return the recording's whole value."""
    return snapshot_of(recording)


@given(recordings())
@settings(max_examples=30)
def test_written_snapshot_reads_back_as_the_recording(recording: Recording) -> None:
    for suffix in (".pickle", ".pickle.gz"):
        again = through("snapshot", suffix, recording)
        assert sound(again) == sound(recording)
        assert again.layout == recording.layout
        assert again.releases == recording.releases


@given(recordings())
@settings(max_examples=30)
def test_columns_read_back_as_everything(recording: Recording) -> None:
    again = through("columns", ".npz", recording)
    assert sound(again) == sound(recording)
    assert again.markers == recording.markers
    assert again.settings == recording.settings
    for found, wanted in zip(again.devices, recording.devices, strict=True):
        assert found.columns().keys() == wanted.columns().keys()
        for name, column in wanted.columns().items():
            assert_array_equal(found.columns()[name], column)
        assert found.segments == wanted.segments


@given(recordings())
@settings(max_examples=20)
def test_pytorchs_viewer_knows_every_opcode_of_a_snapshot(recording: Recording) -> None:
    file = io.BytesIO()
    FORMATS["snapshot"].write(recording, file)
    names = {opcode.name for opcode, _, _ in pickletools.genops(file.getvalue())}
    assert names <= VIEWER
