"""Charts: units on every axis, curves with the right values, and complete captions."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from allocsim import top
from allocsim.analysis.picture import Picture, picture_of, picture_prepared
from allocsim.analysis.top import Course, answers_of_run
from allocsim.analysis.tune.results import read_tried
from allocsim.errors import ConfigError
from allocsim.recording import load
from allocsim.replaying import prepare
from allocsim.report.figures import (
    DARK,
    LIGHT,
    Theme,
    address_map_figure,
    block_sizes_figure,
    flame_figure,
    front_figure,
    memory_figure,
    save_figure,
    segments_figure,
)
from allocsim.report.figures.canvas import LEAST, MOST, pixels
from allocsim.units import GIB, MIB
from allocsim.workload.programs import oom, streams

if TYPE_CHECKING:
    from matplotlib.figure import Figure

OOM = Path(__file__).parents[2] / "traces" / "gpt2-ragged-oom-torch2.15.pickle.gz"
DRAWINGS: dict[str, Callable[[Picture, Theme], Figure]] = {
    "memory": memory_figure,
    "address map": address_map_figure,
    "segments": segments_figure,
    "sizes": block_sizes_figure,
}


@pytest.fixture(scope="module")
def gpt2() -> Picture:
    return picture_of(load(OOM))


@pytest.fixture(scope="module")
def classic() -> Picture:
    return picture_of(oom())


def words_of(figure: Figure) -> str:
    """Return title and caption, unwrapped."""
    return " ".join(f"{figure.get_suptitle()} {figure.get_supxlabel()}".split())


@pytest.mark.parametrize("theme", [LIGHT, DARK], ids=["light", "dark"])
@pytest.mark.parametrize("kind", DRAWINGS)
def test_figures_have_a_unit_on_every_axis(gpt2: Picture, kind: str, theme: Theme) -> None:
    figure = DRAWINGS[kind](gpt2, theme)
    assert figure.axes
    bottom = figure.axes[-1]
    for axes in figure.axes:
        assert re.search(r"\(.+\)", axes.get_ylabel(), re.DOTALL), axes.get_ylabel()
        if axes is bottom or not axes.get_shared_x_axes().joined(axes, bottom):
            assert re.search(r"\(.+\)", axes.get_xlabel()), axes.get_xlabel()


def test_memory_figure_lines_equal_the_curves(classic: Picture) -> None:
    axes = memory_figure(classic, LIGHT).axes[0]
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in axes.get_lines()}
    assert lines["reserved"].tolist() == [20] * 3 + [40] * 3 + [60] * 11, "MiB"
    assert lines["allocated"][-1] == 27
    needed = lines["1 out-of-memory error, and what it needed"]
    assert needed.tolist() == [72], "60 reserved, and a segment of 12"


def test_memory_figure_of_a_long_run_draws_extremes_and_says_so(gpt2: Picture) -> None:
    figure = memory_figure(gpt2, LIGHT)
    assert "lowest and highest of 18 entries; none is skipped" in words_of(figure)
    lines = {line.get_label(): line.get_ydata() for line in figure.axes[0].get_lines()}
    assert max(np.asarray(lines["reserved"])) * GIB == gpt2.device_run.peak_reserved_bytes
    assert "entries; none" not in words_of(memory_figure(picture_of(oom()), LIGHT))


def test_memory_figure_counts_the_driver_calls(gpt2: Picture) -> None:
    labels = [text.get_text() for text in memory_figure(gpt2, LIGHT).axes[1].get_legend().texts]  # type: ignore[union-attr]
    assert labels == ["cudaMalloc, 124 in total", "cudaFree, 40 in total"]


def test_address_map_caption_has_entries_and_bytes_per_pixel(gpt2: Picture) -> None:
    text = words_of(address_map_figure(gpt2, LIGHT, "size"))
    assert "9,105 blocks, 26,064 entries. A pixel is 17 entries wide and 11.64 MiB high" in text
    assert "none is skipped" in text


def test_address_map_legend_has_only_drawn_colours(classic: Picture) -> None:
    def legend_of(picture: Picture) -> list[str]:
        return [t.get_text() for t in address_map_figure(picture, LIGHT).axes[0].get_legend().texts]  # type: ignore[union-attr]

    assert legend_of(classic) == ["allocated", "reserved, free", "not reserved", "out of memory"]
    assert "freed, waiting for a stream" in legend_of(picture_of(streams()))


def test_segments_figure_adds_up_to_reserved_memory(classic: Picture) -> None:
    text = words_of(segments_figure(classic, LIGHT, 15))
    assert "segments after entry 15" in text
    assert "60.00 MiB reserved, 27.00 MiB allocated, 0 bytes waiting" in text
    assert "33.00 MiB free; largest free block 9.00 MiB" in text


def test_segments_beyond_the_bars_are_all_packed_into_rows(gpt2: Picture) -> None:
    figure = segments_figure(gpt2, LIGHT)
    assert "All 96 segments" in words_of(figure)
    (axes,) = figure.axes
    free = tuple(int(LIGHT.free[at : at + 2], 16) / 255 for at in (1, 3, 5))
    rows: list[Any] = list(axes.collections)
    is_ground = [np.allclose(row.get_facecolor()[0][:3], free) for row in rows]
    grounds = sum(len(row.get_paths()) for row, is_it in zip(rows, is_ground, strict=True) if is_it)
    assert 96 <= grounds <= 96 + 8, "some go on in the next row"
    names = [text.get_text().partition(":")[0] for text in axes.texts]
    assert names == ["large", "small"]


def test_steps_and_phases_lie_behind_the_curves() -> None:
    (prepared,) = prepare(load(OOM))
    picture = picture_prepared(prepared)
    answers = answers_of_run(prepared, picture.device_run, bys=())
    above, _ = memory_figure(picture, LIGHT, answers.course).axes
    legend = above.get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()][-6:] == [
        *("setting up", "the program's own code", "forward", "backward", "optimizer"),
        "7 steps, where each begins",
    ]
    bands = {each.get_label(): each for each in above.collections}
    assert len(bands["backward"].get_paths()) == 7
    left = [path.get_extents().x0 for path in bands["backward"].get_paths()]
    starts = answers.course.phase_starts[answers.course.phase == 4]
    assert left == pytest.approx(starts.tolist(), abs=26_064 / 1500)


def test_phases_of_a_short_run_begin_at_their_entries() -> None:
    picture = picture_of(oom())
    phase = np.array([0, 3, 4], dtype=np.uint8)
    none = np.array([], dtype=np.int64)
    course = Course(none, none, np.array([0, 2, 9]), phase)
    above, _ = memory_figure(picture, LIGHT, course).axes
    bands = {each.get_label(): each.get_paths() for each in above.collections}
    (forward,), (backward,) = bands["forward"], bands["backward"]
    assert (forward.get_extents().x0, forward.get_extents().x1) == (2, 9)
    assert (backward.get_extents().x0, backward.get_extents().x1) == (9, 16)


def test_legends_of_figures_give_the_bytes(classic: Picture) -> None:
    legend = segments_figure(classic, LIGHT, 15).axes[0].get_legend()
    assert legend is not None
    assert [text.get_text() for text in legend.get_texts()] == [
        *("allocated 27.00 MiB", "free 33.00 MiB"),
    ]


def test_flame_graph_is_as_wide_as_the_allocated_memory() -> None:
    found = top(load(OOM))
    figure = flame_figure(found, LIGHT)
    (axes,) = figure.axes
    assert axes.get_xlabel() == "memory (GiB)"
    assert axes.get_xlim()[1] * GIB == found.allocated_bytes
    assert (
        "4.63 GiB in 710 blocks by stack, at the out-of-memory error (entry 26,059, step 7, "
        "backward)"
    ) in words_of(figure)
    assert 'less than 0.25% of the memory are folded into "other": ' in words_of(figure)
    names = [text.get_text() for text in axes.texts]
    assert "gpt.py:12 forward  1.06 GiB" in names
    assert any(name.endswith("…") for name in names), "cut to fit"


def test_small_memory_is_visible_in_the_figures() -> None:
    reserved = np.ones((1, 4), dtype=np.float32)
    used = np.array([[0, 0.001, 0.999, 1]], dtype=np.float32)
    image = pixels(reserved, [used], ["#FF0000"], "#000000", "#FFFFFF")
    assert image[0, :, 0].tolist() == pytest.approx([0, LEAST, MOST, 1])


def test_colours_of_kinds_are_those_for_every_eye() -> None:
    okabe_ito = {
        "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7",
    }  # fmt: skip
    for theme in (LIGHT, DARK):
        assert set(theme.kinds[:-1]) <= okabe_ito
        assert len(set(theme.kinds)) == 7


def test_colours_of_sizes_only_grow_lighter() -> None:
    for theme in (LIGHT, DARK):
        light = [_lightness(colour) for colour in theme.sizes]
        assert light == sorted(light)


def _lightness(colour: str) -> float:
    red, green, blue = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    found: float = 0.2126 * red**2.2 + 0.7152 * green**2.2 + 0.0722 * blue**2.2
    return found


def rows(*settings: tuple[str, int, int, int, int]) -> str:
    """Return `allocsim tune --json` of settings (conf, MiB, allocs, retries, errors)."""
    return json.dumps(
        {
            "rows": [
                {
                    "conf": conf,
                    "peak_reserved_bytes": mib * MIB,
                    "num_device_alloc": allocs,
                    "num_device_free": 0,
                    "num_alloc_retries": retries,
                    "num_ooms": ooms,
                    "dropped_at": None,
                }
                for conf, mib, allocs, retries, ooms in settings
            ]
        }
    )


def test_pareto_front_omits_dominated_settings(tmp_path: Path) -> None:
    file = tmp_path / "tune.json"
    file.write_text(
        rows(("", 100, 9, 0, 0), ("a:1", 80, 12, 0, 0), ("b:1", 110, 9, 0, 0), ("c:1", 60, 2, 0, 1))
    )
    tried = read_tried(str(file))
    assert [each.conf for each in tried.front] == ["a:1", ""], "c:1 ran out of memory"
    figure = front_figure(tried, DARK)
    texts = [text.get_text() for text in figure.axes[0].get_legend().texts]  # type: ignore[union-attr]
    assert texts[0] == "out of memory (1)"
    assert "a:1\n80.00 MiB, 12 calls, 0 retries" in texts
    assert figure.axes[0].get_xlabel() == "peak of reserved memory (MiB)"


def test_front_figure_reads_a_results_file(tmp_path: Path) -> None:
    file = tmp_path / "tune.jsonl"
    lines = [
        {"format": "allocsim tune 2"},
        {"key": "0|0|whole||", "peak_reserved_bytes": 20 * MIB, "num_device_alloc": 3},
        {"key": "1|0|whole||", "peak_reserved_bytes": 40 * MIB, "num_device_alloc": 1},
        {"key": "0|0|grid||x:1", "peak_reserved_bytes": MIB, "dropped_at": 7},
    ]
    file.write_text("\n".join(map(json.dumps, lines)))
    tried = read_tried(str(file))
    assert [(each.conf, each.peak_reserved_bytes // MIB) for each in tried.settings] == [
        ("", 40), ("x:1", 1),
    ]  # fmt: skip
    assert tried.settings[0].driver_calls == 3, "the worst of its lines"
    assert not tried.settings[1].is_whole


@pytest.mark.parametrize("text", ["", "[]", "{}", "3", '{"rows": [1]}', "no JSON", '{"rows": []}'])
def test_front_figure_refuses_a_file_without_settings(tmp_path: Path, text: str) -> None:
    file = tmp_path / "other.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"other\.json: holds no settings; expected the output"):
        read_tried(str(file))


def test_equal_figures_give_equal_files(classic: Picture, tmp_path: Path) -> None:
    files = [tmp_path / "one.svg", tmp_path / "two.svg"]
    for file in files:
        save_figure(memory_figure(classic, LIGHT), str(file))
    assert files[0].read_bytes() == files[1].read_bytes()
    root = ET.fromstring(files[0].read_text())  # noqa: S314  (our own file)
    assert root.tag.endswith("svg")
    assert "memory (MiB)" in "".join(root.itertext()), "text stays text"


def test_save_figure_reports_a_write_error_in_a_sentence(classic: Picture, tmp_path: Path) -> None:
    figure = memory_figure(classic, LIGHT)
    with pytest.raises(ConfigError, match=r"x\.pdf: a figure's name must end in \.png or \.svg"):
        save_figure(figure, "x.pdf")
    with pytest.raises(ConfigError, match=r"cannot be written \(No such file or directory\)"):
        save_figure(figure, str(tmp_path / "nowhere" / "x.png"))
