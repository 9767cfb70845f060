"""Comparison of two recordings, except for their paths."""

from __future__ import annotations

import numpy as np

from allocsim.recording import Recording


def assert_alike(mine: Recording, theirs: Recording) -> None:
    for name in ("layout", "settings", "annotations", "markers", "n_device_traces", "provenance"):
        assert getattr(mine, name) == getattr(theirs, name), name
    assert mine.frame_table.frames == theirs.frame_table.frames
    assert np.array_equal(mine.frame_table.flat, theirs.frame_table.flat)
    assert np.array_equal(mine.frame_table.offsets, theirs.frame_table.offsets)
    for one, other in zip(mine.devices, theirs.devices, strict=True):
        for name in ("device", "segments", "pool_ids", "texts", "marks"):
            assert getattr(one, name) == getattr(other, name), name
        columns, others = one.columns(), other.columns()
        assert columns.keys() == others.keys()
        for name, column in columns.items():
            assert column.dtype == others[name].dtype, name
            assert np.array_equal(column, others[name]), name
