"""Differences between the loop of fast_path.py and its compiled form.

    python -m tests.compiled_form        write the differences, after the same change of both files

Both files have the same steps; only operations on C arrays differ.  compiled_form.diff has the
differences, so a change of one file alone fails a test that needs no compiler.
"""

from __future__ import annotations

from collections.abc import Iterator
from difflib import unified_diff
from pathlib import Path

__all__ = ["CORE", "RECORDED", "differences", "loop"]

CORE = Path(__file__).parents[1] / "allocsim" / "core"
RECORDED = Path(__file__).parent / "compiled_form.diff"


def loop(source: str) -> Iterator[str]:
    """Yield the statements of the function `play` without its docstring and comments."""
    body = source.partition("\ndef play(")[2].partition("\ndef ")[0]
    _, _, body = body.partition('"""')
    _, _, body = body.partition('"""')
    for line in body.splitlines():
        statement = line.partition("  #")[0].rstrip()
        if statement and not statement.lstrip().startswith("#"):
            yield statement


def differences(plain: str, compiled: str) -> str:
    """Return the lines that differ, in order: `-` of fast_path.py, `+` of _fast_path.pyx."""
    lines = unified_diff(list(loop(plain)), list(loop(compiled)), n=0, lineterm="")
    return "".join("@@\n" if line.startswith("@@") else f"{line}\n" for line in list(lines)[2:])


if __name__ == "__main__":
    RECORDED.write_text(
        differences((CORE / "fast_path.py").read_text(), (CORE / "_fast_path.pyx").read_text())
    )
