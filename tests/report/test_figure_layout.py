"""Layout of charts: no part is outside the image, covers another part, or is missing."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from allocsim import top
from allocsim.analysis.picture import Picture, picture_of
from allocsim.analysis.tune.results import read_tried
from allocsim.errors import OutOfMemoryError
from allocsim.recording import Recording, load
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
from allocsim.units import GIB, MIB
from allocsim.workload.programs import oom, streams
from allocsim.workload.recorder import Recorder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

OOM = Path(__file__).parents[2] / "traces" / "gpt2-ragged-oom-torch2.15.pickle.gz"
DRAWINGS: dict[str, Callable[[Picture, Theme], Figure]] = {
    "memory": memory_figure,
    "map": address_map_figure,
    "owners": lambda picture, theme: address_map_figure(picture, theme, "owner"),
    "sizes on the map": lambda picture, theme: address_map_figure(picture, theme, "size"),
    "segments": segments_figure,
    "sizes": block_sizes_figure,
}
NAMES = [
    ("/home/" + "deep/" * 30 + "modeling_transformer.py", "scaled_dot_product_attention_forward"),
    ("cost$x_{$.py", "f$\\frac{$"),
    ("_device.py", "__torch_function__"),
    ("日本語.py", "学習"),
    ("line\nbreak.py", "bad\tname"),
    ("modeling_transformer.py", "attention_forward"),
    ("modeling_transformer.py", "feed_forward_gate"),
]


def written(recorder: Recorder, path: str = "run.npz") -> Recording:
    """Return a recorder's recording under a file name."""
    return replace(recorder.recording("test", {}), path=path)


def drawn(recorder: Recorder) -> Picture:
    """Return the picture of a recorder's recording."""
    return picture_of(written(recorder))


@pytest.fixture(scope="module")
def odd_names_written() -> Recording:
    """Return a recording with long, foreign and formula-like names of code and file."""
    recorder = Recorder("1GiB")
    for row in range(70):
        name, function = NAMES[row % len(NAMES)]
        recorder.malloc((row % 9 + 1) * MIB // 2, recorder.code(name, function, 100000 + row % 7))
    return written(recorder, "runs/" + "a_long_name_" * 15 + "$x_{$学.npz")


@pytest.fixture(scope="module")
def odd_names(odd_names_written: Recording) -> Picture:
    return picture_of(odd_names_written)


@pytest.fixture(scope="module")
def many_errors() -> Picture:
    """Return a picture with a hundred failed requests and one success."""
    recorder = Recorder("64MiB")
    code = recorder.code("a.py", "f", 1)
    recorder.malloc(40 * MIB, code)
    for _ in range(100):
        with pytest.raises(OutOfMemoryError):
            recorder.malloc(50 * MIB, code)
    return drawn(recorder)


@pytest.fixture(scope="module")
def nothing() -> Picture:
    """Return a picture with one failed request and nothing else."""
    recorder = Recorder("64MiB")
    with pytest.raises(OutOfMemoryError):
        recorder.malloc(500 * GIB, recorder.code("a.py", "f", 1))
    return drawn(recorder)


@pytest.fixture(scope="module")
def one_block() -> Picture:
    """Return a picture of 512 bytes in a segment of 2 MiB: two entries."""
    recorder = Recorder("1GiB")
    recorder.malloc(512, recorder.code("a.py", "f", 1))
    return drawn(recorder)


@pytest.fixture(scope="module")
def pictures(
    odd_names: Picture, many_errors: Picture, nothing: Picture, one_block: Picture
) -> dict[str, Picture]:
    return {
        "odd names": odd_names,
        "many errors": many_errors,
        "nothing": nothing,
        "one block": one_block,
        "two streams": picture_of(streams()),
    }


def parts(figure: Figure) -> list[tuple[str, Any]]:
    """Return the name and the place of each part: title, caption, and the parts of each axes."""
    figure.draw_without_rendering()
    found = [(text.get_text(), text.get_window_extent()) for text in figure.texts]
    for axes in figure.axes:
        found.append((f"plane of {axes.get_ylabel()}", axes.get_window_extent()))
        for text in axes.findobj(lambda a: hasattr(a, "get_text")):
            if text.get_text() and text.get_text() == axes.get_title(loc="left"):  # type: ignore[attr-defined]
                found.append(("title of a panel", text.get_window_extent()))
        legend = axes.get_legend()
        if legend is not None:
            found.append(("legend", legend.get_window_extent()))
    return found


def assert_tidy(figure: Figure) -> None:
    """Assert that all parts are inside the figure and do not overlap."""
    for (name, one), (other, two) in combinations(parts(figure), 2):
        apart = one.padded(-1)
        assert not apart.overlaps(two.padded(-1)), f"{name!r} and {other!r}"
    width, height = figure.get_size_inches()
    box = figure.get_tightbbox()
    assert box.x0 >= -0.02
    assert box.y0 >= -0.02
    assert box.x1 <= width + 0.02
    assert box.y1 <= height + 0.02


def labels_of(axes: Axes) -> list[str]:
    """Return the texts of a legend."""
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in legend.get_texts()]


def ticks(axis: Any) -> list[str]:
    """Return the visible tick labels of an axis."""
    low, high = sorted(axis.get_view_interval())
    axis.figure.draw_without_rendering()
    pairs = zip(axis.get_ticklocs(), axis.get_ticklabels(), strict=True)
    return [label.get_text() for place, label in pairs if low <= place <= high]


@pytest.mark.filterwarnings("ignore:Glyph")
@pytest.mark.parametrize("kind", DRAWINGS)
@pytest.mark.parametrize(
    "of",
    [
        *("odd names", "many errors", "nothing"),
        *(pytest.param(each, marks=pytest.mark.slow) for each in ("one block", "two streams")),
    ],
)
def test_figure_parts_do_not_overlap(pictures: dict[str, Picture], of: str, kind: str) -> None:
    assert_tidy(DRAWINGS[kind](pictures[of], LIGHT))


@pytest.mark.filterwarnings("ignore:Glyph")
def test_flame_graph_names_stay_in_their_boxes(odd_names_written: Recording) -> None:
    figure = flame_figure(top(odd_names_written), DARK)
    assert_tidy(figure)
    (axes,) = figure.axes
    lefts = [text.get_window_extent().x0 for text in axes.texts]
    rights = [text.get_window_extent().x1 for text in axes.texts]
    assert len(lefts) == len(NAMES)
    assert all(right < left for right, left in zip(rights, lefts[1:], strict=False))
    assert rights[-1] < axes.get_window_extent().x1
    assert "cost$x_{$.py:10000" in " ".join(text.get_text() for text in axes.texts)


@pytest.mark.filterwarnings("ignore:Glyph")
def test_empty_flame_graph_says_that_nothing_was_allocated() -> None:
    recorder = Recorder("64MiB")
    code = recorder.code("a.py", "f", 1)
    recorder.free(recorder.malloc(512, code), code)
    figure = flame_figure(top(written(recorder), "end"), LIGHT)
    assert_tidy(figure)
    assert figure.get_supxlabel() == "Nothing was allocated."


@pytest.mark.filterwarnings("ignore:Glyph")
def test_long_names_of_code_leave_the_map_its_width(odd_names: Picture) -> None:
    figure = address_map_figure(odd_names, LIGHT, "owner")
    figure.draw_without_rendering()
    assert figure.axes[0].get_position().width > 0.85


def test_figures_show_names_as_text_not_as_formulas(odd_names: Picture, tmp_path: Path) -> None:
    figure = address_map_figure(odd_names, DARK, "owner")
    labels = labels_of(figure.axes[0])
    assert "cost$x_{$.py:100001 f$\\frac{$" in labels
    assert "_device.py:100002 __torch_function__"[-33:] in " ".join(labels)
    assert not any(character in label for label in labels for character in "\n\t")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(figure, str(tmp_path / "map.png"))
    assert (tmp_path / "map.png").stat().st_size > 20_000


def test_title_wraps_long_settings() -> None:
    conf = "max_split_size_mb:64,garbage_collection_threshold:0.8,"
    conf += "roundup_power2_divisions:[256:1,512:2,1024:4,>:8],expandable_segments:False"
    figure = segments_figure(picture_of(oom(), conf), LIGHT)
    assert_tidy(figure)
    assert "expandable_segments:False" in figure.get_suptitle()


def test_axis_of_a_few_entries_has_whole_numbers(one_block: Picture) -> None:
    assert ticks(memory_figure(one_block, LIGHT).axes[1].xaxis) == ["0", "1", "2"]
    assert ticks(address_map_figure(one_block, LIGHT).axes[0].xaxis) == ["0", "1", "2"]


def test_last_entry_is_as_wide_as_the_others(one_block: Picture) -> None:
    (allocated,) = (
        line
        for line in memory_figure(one_block, LIGHT).axes[0].get_lines()
        if line.get_label() == "allocated"
    )
    assert np.asarray(allocated.get_xdata()).tolist() == [0, 1, 2]
    assert (np.asarray(allocated.get_ydata()) * MIB).tolist() == [0, 512, 512]


def test_driver_call_at_the_first_entry_does_not_touch_the_axis(one_block: Picture) -> None:
    assert memory_figure(one_block, LIGHT).axes[0].get_xlim()[0] < 0


def test_curves_that_coincide_can_all_be_seen() -> None:
    """In the classic example, requested equals allocated, and both equal ideal at first."""
    lines = {
        line.get_label(): line for line in memory_figure(picture_of(oom()), LIGHT).axes[0].lines
    }
    widths = [lines[name].get_linewidth() for name in ("reserved", "ideal", "allocated")]
    assert widths == sorted(widths, reverse=True)
    assert lines["requested"].get_zorder() > lines["allocated"].get_zorder()
    assert lines["requested"].is_dashed()


def test_markers_of_many_errors_do_not_cover_the_curves(many_errors: Picture) -> None:
    figure = memory_figure(many_errors, LIGHT)
    assert "100 out-of-memory errors, and what they needed" in labels_of(figure.axes[0])
    for axes in (figure.axes[0], address_map_figure(many_errors, LIGHT).axes[0]):
        (marks,) = (each for each in axes.collections if each.get_zorder() == 4)
        (low, high), *_ = (
            np.asarray(path.vertices, dtype=float)[:, 1] for path in marks.get_paths()
        )
        assert 1 <= low < high < 1.02, "above the axes, in shares of their height"


def test_single_error_is_a_line_from_top_to_bottom() -> None:
    axes = address_map_figure(picture_of(oom()), LIGHT).axes[0]
    (marks,) = axes.collections
    (path,) = marks.get_paths()
    assert np.asarray(path.vertices, dtype=float).tolist() == [[15, 0], [15, 1]]


def test_figures_without_reserved_memory_say_so(nothing: Picture) -> None:
    axes = address_map_figure(nothing, LIGHT)
    assert axes.get_supxlabel() == "0 blocks, 1 entry. Nothing was ever reserved."
    assert memory_figure(nothing, LIGHT).axes[0].get_ylabel() == "memory (GiB)", "500 were asked"
    above, below = block_sizes_figure(nothing, LIGHT).axes
    assert ticks(above.yaxis) == ["0", "1"]
    assert below.get_ylim()[0] == 0


def test_axis_of_counts_has_plain_numbers(one_block: Picture) -> None:
    figure = block_sizes_figure(picture_of(oom()), LIGHT)
    assert ticks(figure.axes[0].yaxis) == ["0", "1", "2", "5"], "six blocks of 9 MiB"
    assert "sizes from 1 MiB up to, not including, 2 MiB." in figure.get_supxlabel()
    assert "Above: 1 block over" in block_sizes_figure(one_block, LIGHT).get_supxlabel()


def test_narrow_block_has_no_gap_around_it(one_block: Picture) -> None:
    from matplotlib.colors import to_hex  # noqa: PLC0415

    (axes,) = segments_figure(one_block, LIGHT).axes
    edges = {
        to_hex(bars.get_facecolor()[0]).upper(): to_hex(bars.get_edgecolor()[0]).upper()  # type: ignore[arg-type]
        for bars in axes.collections
        if bars.get_paths()
    }
    assert edges == {LIGHT.kinds[0]: LIGHT.kinds[0], LIGHT.free: LIGHT.page}


def test_figure_of_a_few_segments_is_low(one_block: Picture) -> None:
    assert segments_figure(one_block, LIGHT).get_figheight() < 3
    assert segments_figure(picture_of(load(OOM)), LIGHT).get_figheight() > 4


def test_huge_segment_has_an_axis_in_gib() -> None:
    recorder = Recorder("200GiB")
    code = recorder.code("a.py", "f", 1)
    recorder.malloc(512, code)
    recorder.malloc(100 * GIB, code)
    large, small = segments_figure(drawn(recorder), LIGHT).axes
    assert large.get_xlabel() == "offset in the segment (GiB)"
    assert large.get_xlim()[1] == 100
    assert small.get_xlabel() == "offset in the segment (KiB)"


def front_of(tmp_path: Path, *settings: tuple[str, int, int, int]) -> Figure:
    """Draw the front of settings (conf, MiB, calls, retries)."""
    rows = [
        {
            "conf": conf, "peak_reserved_bytes": mib * MIB, "num_device_alloc": calls,
            "num_device_free": 0, "num_alloc_retries": retries, "num_ooms": 0, "dropped_at": None,
        }
        for conf, mib, calls, retries in settings
    ]  # fmt: skip
    file = tmp_path / "tried.json"
    file.write_text(json.dumps({"rows": rows}))
    return front_figure(read_tried(str(file)), LIGHT)


def test_legend_of_a_long_front_fits_beside_it(tmp_path: Path) -> None:
    conf = "expandable_segments:True,garbage_collection_threshold:0.{0},max_split_size_mb:{0}00,"
    conf += "roundup_power2_divisions:[256:1,512:2,1024:4,2048:8,>:{0}],pinned_use_$x_{{$:{0}"
    figure = front_of(tmp_path, *((conf.format(i), 90 + i, 50 - i, 0) for i in range(1, 12)))
    assert_tidy(figure)
    assert "The first 9 on the front are named" in figure.get_supxlabel()


def test_legend_of_a_short_front_has_whole_settings(tmp_path: Path) -> None:
    conf = "expandable_segments:True,garbage_collection_threshold:0.8,max_split_size_mb:100,"
    conf += "roundup_power2_divisions:[256:1,512:2,1024:4,2048:8,>:16]"
    figure = front_of(tmp_path, (conf, 90, 5, 0))
    _, name = labels_of(figure.axes[0])
    assert "".join(name.split()) == conf + "90.00MiB,5calls,0retries"
    assert figure.get_supxlabel().startswith("1 setting. ")


def test_settings_alike_are_counted_and_not_hidden(tmp_path: Path) -> None:
    figure = front_of(tmp_path, ("a:1", 90, 5, 0), ("b:1", 90, 5, 0), ("c:1", 95, 6, 0))
    assert labels_of(figure.axes[0]) == [
        "no request failed (1)",
        "Pareto front",
        "a:1\n90.00 MiB, 5 calls, 0 retries; 1 more alike",
    ]
    assert all("." not in label for label in ticks(figure.axes[0].yaxis)), "calls are whole"


def test_numbers_of_adjacent_markers_do_not_overlap(tmp_path: Path) -> None:
    figure = front_of(
        tmp_path, ("a:1", 100, 51, 0), ("b:1", 101, 50, 0), ("c:1", 102, 49, 0), ("d:1", 400, 1, 0)
    )
    figure.draw_without_rendering()
    boxes = [text.get_window_extent() for text in figure.axes[0].texts]
    assert len(boxes) == 4
    assert not any(one.padded(-2).overlaps(two.padded(-2)) for one, two in combinations(boxes, 2))


def test_line_of_the_pareto_front_never_rises(tmp_path: Path) -> None:
    """A setting with more memory may be on the front for its few retries; it is above the line."""
    figure = front_of(tmp_path, ("a:1", 90, 5, 2), ("b:1", 95, 8, 0), ("c:1", 99, 3, 0))
    (line,) = figure.axes[0].get_lines()
    assert np.asarray(line.get_ydata()).tolist() == [5, 5, 3]
