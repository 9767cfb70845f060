"""Columns of sizes are rounded like single sizes (semantics 1.2)."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from allocsim.core import MAX_REQUEST, RELEASES, find_release, parse_conf
from allocsim.replaying import rounded_by

CONFS = (
    "",
    "roundup_power2_divisions:1",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:64",
    "roundup_power2_divisions:[1:4]",
    "roundup_power2_divisions:[1:8,64:2,256:16,>:1]",
    "roundup_power2_divisions:[8:1,16:64,1024:4,>:2]",
)


@pytest.mark.parametrize("torch", RELEASES)
@pytest.mark.parametrize("conf", CONFS)
def test_a_column_is_rounded_as_its_sizes_are(conf: str, torch: str) -> None:
    """Check sizes at and beside every place where the step may change, unordered."""
    config = parse_conf(conf, find_release(torch))
    powers = [1 << bits for bits in range(60)]
    parts = [512 * divisions for divisions in (1, 2, 4, 8, 16, 64)]
    edges = {edge + beside for edge in (*powers, *parts) for beside in (-1, 0, 1, 511, 513)}
    sizes = np.random.default_rng(0).permutation(sorted(edges - {-1, 0}))
    expected = [config.round_size(size) for size in sizes.tolist()]
    assert rounded_by(config, sizes).tolist() == expected


@given(
    sizes=st.lists(st.integers(1, MAX_REQUEST), max_size=20),
    divisions=st.lists(st.sampled_from((0, 1, 2, 4, 8, 16, 32, 64)), min_size=1, max_size=5),
    torch=st.sampled_from(list(RELEASES)),
)
def test_rounded_by_agrees_with_the_model_for_any_divisions(
    sizes: list[int], divisions: list[int], torch: str
) -> None:
    pairs = [f"{4**at}:{value}" for at, value in enumerate(divisions) if value]
    conf = f"roundup_power2_divisions:[{','.join(pairs)}]" if pairs else ""
    config = parse_conf(conf, find_release(torch))
    expected = [config.round_size(size) for size in sizes]
    assert rounded_by(config, np.array(sizes, dtype=np.int64)).tolist() == expected
