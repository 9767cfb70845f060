"""Every function of upstream that the model has leads to its counterpart."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.mirrors import (
    PAGE,
    SAME_NAMES,
    docstrings,
    lines,
    main,
    mirrors,
    rewritten,
    same_names,
    table,
)

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"

VERBS = {
    *("malloc", "get_pool", "get_free_block", "alloc_block", "alloc_found_block", "should_split"),
    *("free", "free_block", "try_merge_blocks", "recordStream", "insert_events", "process_events"),
    *("insert_events_deferred_until_no_capture", "synchronize_and_free_events"),
    *("garbage_collect_cached_blocks", "release_available_cached_blocks"),
    *("release_cached_blocks", "release_blocks", "release_block", "release_expandable_segment"),
    *("try_allocate_expandable_block", "find_expandable_block", "map_block", "unmap_block"),
    *("beginAllocateToPool", "endAllocateToPool", "releasePool", "create_or_incref_pool"),
    *("setMemoryFraction", "setUseOnOOM", "setNoSplit", "emptyCache", "getStats", "snapshot"),
    *("round_size", "get_allocation_size", "roundup_power2_next_division"),
}
"""Functions of upstream's allocator that the model covers."""


def test_every_verb_of_upstream_has_its_counterpart() -> None:
    assert not VERBS - {upstream for upstream, _, _ in mirrors()}


def test_every_same_name_is_used_in_the_core() -> None:
    """A rename in the core must not leave the table without the counterpart."""
    used = {each for _, name, file in mirrors() if "core/" in file for each in same_names(name)}
    assert used == SAME_NAMES


def test_a_docstring_line_has_one_form_and_is_not_redundant() -> None:
    """The line stands alone, so that a search finds it, and names what the name does not."""
    wrong = [
        f"{file.relative_to(ROOT)}: {name}"
        for file in sorted((ROOT / "allocsim").rglob("*.py"))
        for tree in [ast.parse(file.read_text())]
        for name, docstring in [("", ast.get_docstring(tree) or ""), *docstrings(tree)]
        if docstring.count("Mirrors") != (1 if name and lines(docstring) else 0)
        or (file.parent.name == "core" and set(lines(docstring)) & set(same_names(name)))
    ]
    assert not wrong


def test_a_line_may_name_several() -> None:
    assert lines("Make it.\n\nMirrors: release_block, Pool::release_blocks\n") == [
        "release_block",
        "Pool::release_blocks",
    ]
    assert lines("Mirrors `release_block`.") == lines("It is said: Mirrors: free") == []


def test_case_and_underscores_do_not_separate_names() -> None:
    assert same_names("CachingAllocator.record_stream") == ["recordStream"]
    assert same_names("PendingFrees._insert_events") == ["insert_events"]
    assert same_names("ExpandableSegment.map") == ["ExpandableSegment::map"]
    assert same_names("Arena.map") == []


def test_the_table_has_only_names_that_differ() -> None:
    rows = table().splitlines()
    assert "| `free_block` | `Heap.complete_free` in `core/find_split_merge.py` |" in rows
    assert not [row for row in rows if "Heap.free_block" in row and "`free_block`" in row]


def test_the_page_has_what_the_docstrings_say() -> None:
    text = (DOCS / PAGE).read_text()
    assert text == rewritten(text), (
        f"docs/{PAGE} is behind the docstrings: run python -m tests.mirrors docs"
    )


def test_the_page_is_written_between_its_marks(tmp_path: Path) -> None:
    text = (DOCS / PAGE).read_text()
    before, mark, rest = text.partition("-->\n\n| upstream |")
    after = rest.partition("<!-- end of mirrors -->")[2]
    assert mark
    (tmp_path / PAGE).parent.mkdir()
    (tmp_path / PAGE).write_text(f"{before}-->\n<!-- end of mirrors -->{after}")
    main([str(tmp_path)])
    assert (tmp_path / PAGE).read_text() == text


def test_a_page_without_marks_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the marks .* are not on the page"):
        rewritten("# A page\n")
