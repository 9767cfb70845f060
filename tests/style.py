"""Language rules of docs/STYLE.md that a program can check.

`python -m tests.style [PATH…]` prints each violation as file:line: message.
"""

from __future__ import annotations

import ast
import io
import json
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PLACES = ("allocsim", "tests", "benchmarks", "notebooks", "docs", "traces", "README.md")
EXEMPT = {"docs/STYLE.md", "tests/style.py"}
"""Files that quote the words they forbid."""

OPENINGS = re.compile(r"(What|Whether|Of|Those|Which|How|Where|Whom?|Whose)\b")
WORDS = {
    "anew": "again",
    "so many": "N, this number of",
    "one that": "name the thing: a block that",
    "ones that": "name the things: blocks that",
    "of which": "use a verb: including, with",
    "in which": "where, or a verb",
    "told": "known, given, reported",
    "tells of": "reports",
    "given back": "released",
    "gives back": "releases or returns",
    "give back": "release or return",
    "the house": "the package",
    "likewise": "repeat the noun",
    "is to be": "must be, will be",
    "are to be": "must be, will be",
    "is to have": "needs",
    "thereof": "rewrite",
    "whereof": "rewrite",
    "nought": "zero",
    "kin": "name the group",
    "no more than that": "only that",
    "no one's": "rewrite",
    "anyone's": "rewrite",
    "it is not for": "rewrite",
    "none of its": "rewrite",
    "of its own": "own, separate",
    "of their own": "own, separate",
    "stands": "is",
    "lies": "is",
    "has no use for": "does not use",
    "goes without": "omits, has no",
    "go without": "omit, have no",
    "to blame": "the cause",
    "beforehand": "before",
    "at hand": "available",
    "by hand": "manually",
    "asked for": "requested",
    "asks for": "requests",
    "ask for": "request",
    "worth": "name the value",
}
_ALLOWED = re.compile(r"stands for|stands alone|worth (reading|trying|checking|a look)")
_OPENED = re.compile(rf"[\"']\s*{OPENINGS.pattern}")
"""Start of a string that may be a docstring with a forbidden opening."""
_WORD = re.compile(r"\b(" + "|".join(sorted(map(re.escape, WORDS), key=len, reverse=True)) + r")\b")


@dataclass(frozen=True, slots=True)
class Violation:
    """A text that breaks a rule, with its place."""

    file: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.message}"


def files(places: tuple[str, ...] = PLACES) -> list[Path]:
    """Return the files that the rules cover, in order of their names."""
    found: list[Path] = []
    for place in places:
        path = ROOT / place
        each = [path] if path.is_file() else path.rglob("*")
        found += [one for one in each if one.suffix in {".py", ".md", ".ipynb"}]
    return sorted(one for one in found if "__pycache__" not in one.parts)


def violations(path: Path) -> Iterator[Violation]:
    """Yield the violations in one file."""
    name = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    if name in EXEMPT:
        return
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".py":
        has_word = _WORD.search(text)
        if not has_word and not _OPENED.search(text):
            return  # parsing takes most of the time
        for line, docstring in _docstrings(ast.parse(text)):
            opening = OPENINGS.match(docstring.lstrip())
            if opening:
                yield Violation(name, line, f"docstring opens with {opening[1]!r}")
            yield from _words(name, line, docstring)
        for line, comment in _comments(text) if has_word else ():
            yield from _words(name, line, comment)
    elif path.suffix == ".ipynb":
        for cell in json.loads(text)["cells"]:
            if cell["cell_type"] == "markdown":
                yield from _words(name, 1, "".join(cell["source"]))
    else:
        yield from _words(name, 1, _without_code(text))


def _docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield each docstring, and each string below an assignment, with its line."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        for child in body if isinstance(body, list) else ():
            if (
                isinstance(child, ast.Expr)
                and isinstance(child.value, ast.Constant)
                and isinstance(child.value.value, str)
            ):
                yield child.lineno, child.value.value


def _comments(text: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def _without_code(text: str) -> str:
    """Blank out fenced code, so that line numbers stay."""
    return re.sub(
        r"^```.*?^```",
        lambda code: "\n" * code[0].count("\n"),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )


def _words(name: str, line: int, text: str) -> Iterator[Violation]:
    masked = _ALLOWED.sub(lambda found: "_" * len(found[0]), text)
    for found in _WORD.finditer(masked):
        place = line + masked.count("\n", 0, found.start())
        yield Violation(name, place, f"{found[1]!r}: {WORDS[found[1]]}")


def main() -> int:
    """Print the violations in the given places, and their number; return the exit code."""
    found = [one for path in files(tuple(sys.argv[1:]) or PLACES) for one in violations(path)]
    for one in found:
        print(one)
    print(f"{len(found)} violations")
    return bool(found)


if __name__ == "__main__":
    raise SystemExit(main())
