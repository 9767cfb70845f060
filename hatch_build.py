"""Build hook for the compiled form of the core: Cython makes extension modules of its sources.

Each rule has one source.  Modules are compiled as they are, with C types from a .pxd file beside
them.  In the loop of fast_path.py, whose lists and dictionaries become C arrays, the table `IN_C`
replaces a few operations by C.  Each entry says how often it applies, so that the build fails if
the loop changes in a way that the table does not cover.  Off by default:
HATCH_BUILD_HOOK_ENABLE_CUSTOM=1 pip install .
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from shutil import copytree
from tempfile import mkdtemp
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CORE = Path("allocsim") / "core"
AS_THEY_ARE = (
    "block.py", "sort_key.py", "pool.py", "heap.py", "journal.py", "stats.py", "pending.py",
    "device.py", "attempts.py", "allocator.py",
)  # fmt: skip
LOOP = "fast_path.py"
ARRAYS = "_columns.pyx"

HEAD = """\
# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
# cython: annotation_typing=False
"""

C_NAMES = """\
from libc.stdint cimport int64_t, uint64_t

from allocsim.core._columns cimport (
    Blocks, Column, Keys, Names, StepRows, advance, block_at, fetch_ahead, first_not_below,
    has_name, move_higher, move_lower, put_free, put_named, replace_block, take_free, take_named
)
from allocsim.core.block cimport Block
from allocsim.core.pool cimport BlockPool, FreeBlocks
"""

DECLARED = """\
    cdef StepRows rows = steps if isinstance(steps, StepRows) else StepRows(steps)
    cdef Column moved = moved_out if isinstance(moved_out, Column) else Column()
    cdef Column places = Column() if isinstance(places_out, list) else places_out
    cdef Column sizes, requests, inactive
    cdef BlockPool pool, small, large
    cdef FreeBlocks free, small_free, large_free
    cdef Keys keys
    cdef Names named
    cdef Blocks blocks
    cdef list spare
    cdef Block tail, block, other, following, prev, before, after, suspended, freed, held
    cdef int64_t rounded, size, found_size, rest, block_size, merged, n_before, at
    cdef int64_t split_change, split_undone, splits
    cdef int64_t oversize, max_rounding, large_rest, least_rest
    cdef uint64_t name, stream, keys_stream, key, ptr
    cdef int kind, is_small, size_shift, place_shift
    cdef bint has_oversize, counts_searches, is_plain, is_split, numbers_objects, cuts_oversize
"""

LISTS_BACK = """\
    if moved is not moved_out:
        moved_out += moved
    if places is not places_out:
        places_out += places
    return declined
"""

ROUNDED = """\
if size <= 0 or size > 1 << 38:
                declined = kind, name, size, stream
                break
            rounded = (size + 511) & -512 if is_plain else rounded_sizes[size]"""
"""Excludes 0 bytes, and more than 256 GiB, so that the key of the rounded size is a machine word.
"""

INSERTED = r"""
    \ + if\ is_long:\n
    \ + keys\[at:at\]\ =\ \(key,\)\n
    \ + blocks\[at:at\]\ =\ \((tail|block),\)\n
    \ + else:\n
    \ + keys\.insert\(at,\ key\)\n
    \ + blocks\.insert\(at,\ (tail|block)\)\n
"""

MOVED_LOWER = r"""(?x)
    (\ +) del\ keys\[at\]\n
    \ + del\ blocks\[at\]\n
    \ + at\ =\ find\(keys,\ key,\ 0,\ at\)\n
"""
"""A block that moves to the front: it is removed and inserted again."""

MOVED_HIGHER = r"""(?x)
    (\ +) else:\n
    \ + if\ at\ >=\ 0:\n
    \ + del\ keys\[at\]\n
    \ + del\ blocks\[at\]\n
    \ + at\ =\ find\(keys,\ key\)\n
"""
"""A block that is inserted, or that replaces a merged neighbour and moves to the back."""

PUT_OR_MOVED = r"""\1elif at >= 0:
\1    replace_block(blocks, at, block)
\1    move_higher(keys, blocks, at, key)
\1else:
\1    put_free(keys, blocks, key, block)
"""

UNITS = r"""(?x)
    (\ +) unit\ =\ 1\ <<\ heap\.layout\.size_shift\n
    \ + step\ =\ unit\ if\ numbers_objects\ else\ unit\ -\ 1\n
"""
"""Weight of a byte in a key; C shifts instead, which keeps the key in a machine word."""

SHIFTS = r"""\1size_shift = heap.layout.size_shift
\1place_shift = 63 if numbers_objects else heap.layout.place_shift
"""
"""A shift by 63 makes any number of bytes 0: a place that numbers objects does not move."""

SOUGHT = r"""(?x)
    (\ +) try:\n
    \ + tail\ =\ blocks\[at\]\n
    \ + except\ IndexError:.*\n
    (\ + declined\ =.*\n\ + break\n)
"""
"""Access to an index that may be past the end, which a C array does not notice."""

IN_C: tuple[tuple[int, str, str], ...] = (
    # C declarations; Python imports of the same names would conflict.
    (1, r"from allocsim.core.block import Block\nfrom allocsim.core.columns import find\n", ""),
    (1, r"import BlockPool, FreeBlocks, (least.*)\n", r"import FreeBlocks as Free, \1\n"),
    (1, r"= FreeBlocks\(KeyLayout", "= Free(KeyLayout"),
    (1, r"\n__all__ = ", f"\n{C_NAMES}\n__all__ = "),
    (
        1,
        r"(?s)def play\(.*?\) -> PlainStep \| None:\n",
        "def play(heap, private, pending, steps, dict waiting, moved_out, places_out=None):\n",
    ),
    (1, r" +is_long = .*\n", ""),
    (1, r"(?=    pools = plain_pools\(heap, private, pending\)\n)", DECLARED),
    (1, r"    return declined\n", LISTS_BACK),
    # Constants, which would be Python objects.
    (1, r"kind <= MALLOC:", "kind <= 1:"),
    (1, r"kind == BRIEF ", "kind == 0 "),
    (1, r"kind == FREE:", "kind == 2:"),
    (1, r"kind == FREE_REQUESTED:", "kind == 3:"),
    (1, r"kind == FREE_COMPLETED:", "kind == 4:"),
    (1, r"rounded <= SMALL_SIZE:", "rounded <= 1048576:"),
    (1, r"= MIN_BLOCK_SIZE, 1\n", "= 512, 1\n"),
    (1, r"= config.max_split_size, ", "= min(config.max_split_size, 1 << 62), "),
    (1, r"oversize != UNLIMITED", "oversize != 1 << 62"),
    # Steps from columns, with sizes as machine words.
    (
        1,
        r"    for kind, name, size, stream in remaining:\n",
        "    while advance(rows):\n"
        "        fetch_ahead(rows, named)\n"
        "        kind, name, size, stream = rows.kind, rows.name, rows.size, rows.stream\n",
    ),
    (1, r"rounded = \(size \+ 511\).*", ROUNDED),
    (1, r" +if size <= 0:  # not a request\n.*\n +break\n", ""),
    (10, r"declined = kind, name, size, stream", "declined = rows.current()"),
    (1, r"next\(remaining\)\n", "advance(rows)\n"),
    # Sorted keys.
    (1, MOVED_LOWER + INSERTED, r"\1move_lower(keys, blocks, at, key)\n"),
    (1, MOVED_HIGHER + INSERTED, PUT_OR_MOVED),
    (2, r"del keys\[at\]\n +del blocks\[at\]\n", "take_free(keys, blocks, at)\n"),
    (3, r"find\(keys, (key|rounded \* unit)\)", r"first_not_below(keys, \1, 0, keys.n)"),
    (1, UNITS, SHIFTS),
    (2, r"(rounded|block_size) \* step", r"(\1 * unit - (\1 >> place_shift))"),
    (6, r"(rounded|block_size|merged) \* unit", r"(<uint64_t> \1 << size_shift)"),
    (1, r"\(block\.rank \+ ptr\)", "(block.rank + ptr >> place_shift)"),
    (1, r"len\(keys\)", "keys.n"),
    (2, r"keys\[at\] = key\n", "keys.data[at] = key\n"),
    (1, SOUGHT, r"\1if at == keys.n:\n\2\1tail = block_at(blocks, at)\n"),
    (1, r"tail = blocks\[at\]", "tail = block_at(blocks, at)"),
    (1, r"blocks\[at\] = block\n", "replace_block(blocks, at, block)\n"),
    (2, r"keys\[at ([-+]) 1\] > key", r"keys.data[at \1 1] > key"),
    # Blocks by name.
    (1, r"name not in named:", "not has_name(named, name):"),
    (3, r"named\[name\] = (block|suspended)", r"put_named(named, name, \1)"),
    (2, r"named\.pop\(name, None\)", "take_named(named, name)"),
    # Columns that grow.
    (1, r"inactive, _, _ = stats\.journal", "inactive = stats.journal[:3]"),
    (20, r"(sizes|requests|inactive|places|moved)\.append\(", r"\1.push("),
    (3, r"moved \+= sizes\[n_before:\]", "moved.add(sizes, n_before)"),
    (4, r"len\(sizes\)", "sizes.n"),
)  # fmt: skip
"""(number of matches, pattern in fast_path.py, its replacement)."""


JOURNAL_IMPORT = r"from allocsim\.core\.journal import (?:\([^)]*\)|.*)\n"


def inlined(source: str) -> str:
    """Return a module with the constants of journal.py as numbers, below their import.

    A compiled module would look up a Python object for each use.
    """
    journal = (Path(__file__).parent / CORE / "journal.py").read_text()
    numbers = dict(re.findall(r"^([A-Z_]+): Final = (-?\d+)$", journal, re.MULTILINE))
    end = re.search(JOURNAL_IMPORT, source)
    if end is None:
        return source
    head, body = source[: end.end()], source[end.end() :]
    return head + re.sub(r"\b[A-Z_]+\b", lambda name: numbers.get(name[0], name[0]), body)


def in_c(source: str) -> str:
    """Return the loop with C operations; raise ValueError if the table does not fit."""
    source = inlined(source)
    for count, pattern, words in IN_C:
        source, found = re.subn(pattern, words, source)
        if found != count:
            raise ValueError(f"{LOOP} has {pattern!r} {found} times; expected {count}")
    return HEAD + source


def compiled(root: Path) -> dict[str, str]:
    """Compile the core below `root`; return the modules and their places in a wheel."""
    from Cython.Build import cythonize  # noqa: PLC0415  (only when building)
    from setuptools import Distribution, Extension  # noqa: PLC0415

    work = Path(mkdtemp())
    copytree(root / CORE, work / CORE)
    for package in (work / CORE, work / CORE.parent):
        (package / "__init__.py").touch()
    stats = work / CORE / "stats.py"
    stats.write_text(inlined(stats.read_text()))
    loop = (work / CORE / LOOP).with_suffix(".pyx")
    loop.write_text(in_c((root / CORE / LOOP).read_text()))
    extensions = [
        Extension(
            ".".join((*CORE.parts, Path(name).stem)),
            [str(work / CORE / name)],
            extra_compile_args=["-O2", "-g0"],
        )
        for name in (ARRAYS, loop.name, *AS_THEY_ARE)
    ]
    made = cythonize(
        extensions,
        include_path=[str(work)],
        compiler_directives={"language_level": 3, "annotation_typing": False},
        quiet=True,
    )
    distribution = Distribution({"ext_modules": made})
    build = distribution.get_command_obj("build_ext")
    build.build_lib, build.build_temp = str(work / "lib"), str(work / "temp")
    build.ensure_finalized()
    build.run()
    modules = sorted((work / "lib" / CORE).iterdir())
    return {str(path): str(CORE / path.name) for path in modules}


class CompiledCore(BuildHookInterface[Any]):
    """Hook that adds the extension modules to a wheel, beside their sources."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        """Compile the core before hatchling assembles the wheel."""
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        build_data["force_include"].update(compiled(Path(self.root)))


if __name__ == "__main__":
    sys.stdout.write(in_c((CORE / LOOP).read_text()))
