"""References in docstrings, comments and pages name existing files, and sections of semantics.md.

A citation is a number after "semantics", "section" or "rule", at the beginning of a docstring or
comment, or alone in brackets. "2.6" to "2.15" and numbers that end in ".0" are releases: section 2
has fewer parts.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import fields
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from allocsim.core import RELEASES

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "concepts" / "semantics.md").read_text()
EVIDENCE = ROOT / "tests" / "semantics.toml"
HEADINGS = re.findall(r"^##+ (\d[\w.]*) ", PAGE, re.MULTILINE)
SOURCES = sorted([*(ROOT / "allocsim").rglob("*.py"), *(ROOT / "tests").rglob("*.py")])
COMMENT = re.compile(r"(?:^\s*|  )#+ ?(.*)$")
PAGES = sorted((ROOT / "docs").rglob("*.md"))

NUMBER = r"\d{1,2}(?:\.\d{1,2}[a-z]?)?"
RULE = r"\d{1,2}\.\d{1,2}[a-z]?"
REMARK = r"(?: \([a-z][^()]*\))?"
LIST = rf"{NUMBER}{REMARK}(?:(?:, | and |, and | to ){NUMBER}{REMARK})*"
NAMED = (
    re.compile(rf"\bsemantics ({LIST})", re.IGNORECASE),
    re.compile(rf"\bsections? ({LIST})", re.IGNORECASE),
)
BARE = (
    re.compile(rf"\brules? ({RULE})", re.IGNORECASE),
    re.compile(rf"^({LIST})[:;,']"),
    re.compile(rf"(?<=\s)\(({LIST})\)"),
)
WHOLE_NUMBERS = re.compile(r"^[A-Z][\w ,]* \((\d{1,2}(?:, \d{1,2})*)\)\.$")
"""Comment above a group, e.g. "Option string (8)."; elsewhere such brackets have figures."""

RELEASE = re.compile(r"2\.([6-9]|1\d)|\d+\.0")
FILE = re.compile(r"(?<![\w./<-])[\w./-]*\w\.(?:md|py|cpp|c|h|js|css|html|jsonl?|txt|toml)\b")
FOLDERS = ("allocsim", "tests", "benchmarks", "docs", "notebooks", "traces")
MODULE = re.compile(r"\ballocsim(?:\.\w+)+")
NOT_OURS = {
    "version.py": "PyTorch's",
    "torch/version.py": "PyTorch's",
    "module.py": "PyTorch's, in the stacks of a recording",
    "wheel.json": "written beside the parts of a wheel",
    "config.json": "a model's, of Hugging Face",
    "model.safetensors.index.json": "a model's, of Hugging Face",
    **dict.fromkeys(
        ("cache_utils.py", "models/llama/modeling_llama.py", "modeling_llama.py"), "transformers'"
    ),
    **dict.fromkeys(("nn/modules.py", "functional.py"), "bitsandbytes'"),
    **dict.fromkeys(("gpu_worker.py", "server_args.py"), "vLLM's and SGLang's"),
    **dict.fromkeys(("model_executor/layers/linear.py", "vocab_parallel_embedding.py"), "vLLM's"),
    "quantizers/base.py": "transformers'",
    **dict.fromkeys(("docs/faq.md", "docs/context-length.md"), "Ollama's"),
    **dict.fromkeys(("docs/gguf.md", "src/ggml-common.h", "include/ggml.h"), "ggml's"),
    **dict.fromkeys(("src/llama-model.cpp", "src/llama-context.cpp"), "llama.cpp's"),
    **dict.fromkeys(("src/llama-quant.cpp", "tools/quantize/README.md"), "llama.cpp's"),
    **dict.fromkeys(("tools/server/README.md",), "llama.cpp's"),
    **dict.fromkeys(("llama.cpp", "ggml-org/llama.cpp"), "no file, a program"),
}


def prose(source: str) -> Iterator[tuple[int, str]]:
    """Yield (line, joined text) of each docstring and each block of comments.

    A comment is recognised by its form, alone on its line or after two spaces, which takes a tenth
    of the time of Python's tokenizer.
    """
    lines = source.splitlines()
    for value in docstrings(ast.parse(source).body):
        text = "\n".join(lines[value.lineno - 1 : value.end_lineno])
        yield value.lineno, " ".join(text.replace('"""', " ").split())
    block: list[tuple[int, str]] = []
    for number, line in enumerate(lines, 1):
        found = COMMENT.search(line) if "#" in line else None
        if found is None:
            continue
        if block and number > block[-1][0] + 1:
            yield block[0][0], " ".join(text for _, text in block)
            block = []
        block.append((number, found[1]))
    if block:
        yield block[0][0], " ".join(text for _, text in block)


def docstrings(body: Iterable[ast.stmt]) -> Iterator[ast.Constant]:
    """Yield strings that are statements, at any depth."""
    for node in body:
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value
        for name in ("body", "orelse", "finalbody"):
            yield from docstrings(getattr(node, name, ()))
        for part in (*getattr(node, "handlers", ()), *getattr(node, "cases", ())):
            yield from docstrings(part.body)


def cited(text: str) -> list[str]:
    """Return the sections that a text cites; a range such as "1.2 to 1.4" gives three sections."""
    named = [numbers_in(pattern, text) for pattern in (*NAMED, WHOLE_NUMBERS)]
    groups = [group for found in named for group in found]
    groups += [
        group
        for pattern in BARE
        for group in numbers_in(pattern, text)
        if any("." in number for number in group) and not is_release(group)
    ]
    return list(dict.fromkeys(number for group in groups for number in group))


def numbers_in(pattern: re.Pattern[str], text: str) -> list[list[str]]:
    return [numbers_of(match[1]) for match in pattern.finditer(text)]


def is_release(group: list[str]) -> bool:
    return any(RELEASE.fullmatch(number) for number in group)


def numbers_of(listed: str) -> list[str]:
    """Return the numbers of a list such as "1.2 to 1.7, 12.5 (reserves)"."""
    plain = re.sub(r" \([a-z][^()]*\)", "", listed)
    numbers: list[str] = []
    for part in re.split(r", and |, | and ", plain):
        first, _, last = part.partition(" to ")
        numbers.append(first)
        if "." in last and "." in first:
            chapter, least = first.split(".")
            most = last.split(".")[1]
            numbers += [f"{chapter}.{n}" for n in range(int(least) + 1, int(most))]
        if last:
            numbers.append(last)
    return numbers


@cache
def ends_of_paths() -> frozenset[str]:
    """Return every file of the repository by each trailing part of its path."""
    paths = [path.relative_to(ROOT) for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")]
    paths += [path.relative_to(ROOT) for path in ROOT.glob("*.*")]
    return frozenset("/".join(path.parts[n:]) for path in paths for n in range(len(path.parts)))


def has_module(name: str) -> bool:
    """Return True if a dotted name can be imported, its last parts as attributes."""
    parts = name.split(".")
    for n in range(len(parts), 0, -1):
        try:
            found: object = import_module(".".join(parts[:n]))
        except ModuleNotFoundError:
            continue
        for part in parts[n:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


@cache
def everywhere() -> tuple[tuple[Path, int, str], ...]:
    """Return all prose of the repository, except this file's."""
    return tuple(
        (source, line, text)
        for source in SOURCES
        if source != Path(__file__)
        for line, text in prose(source.read_text())
    )


def place(source: Path, line: int, what: str) -> str:
    """Return file and line of `what`, in a docstring or comment that begins at `line`."""
    rest = source.read_text().splitlines()[line - 1 :]
    there = next((n for n, text in enumerate(rest, line) if what in text), line)
    return f"{source.relative_to(ROOT)}:{there}"


# -- form of citations ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sections"),
    [
        ("Rules (semantics 1.8), each attempt with its function", ["1.8"]),
        ("Source: semantics 6.1 to 6.5.", ["6.1", "6.2", "6.3", "6.4", "6.5"]),
        ("Semantics 4, 12.7 to 12.9: handles", ["4", "12.7", "12.8", "12.9"]),
        ("semantics 8.2, 1.2 (lists), 4.8 and 12.5 (reserves)", ["8.2", "1.2", "4.8", "12.5"]),
        ("semantics 9, and the section named at each field", ["9"]),
        ("users, semantics 8 (names of the options).", ["8"]),
        ("is taken to be its base (1.8 to 1.10, 2.5).", ["1.8", "1.9", "1.10", "2.5"]),
        ("by an object's address (12.3b).", ["12.3b"]),
        ("Rule 1.5, twice: best fit.", ["1.5"]),
        ("Section 4.7: two ranges", ["4.7"]),
        ("The four cases of section 3, one after another", ["3"]),
        ("4.8, 12.5; on a device of 4 GiB.", ["4.8", "12.5"]),
        ("12.1's own wording", ["12.1"]),
        ("8.3: the release that brought each key", ["8.3"]),
        ("Statistics, traces and snapshots (3, 6).", ["3", "6"]),
        ("Option string (8).", ["8"]),
    ],
)
def test_a_citation_is_seen(text: str, sections: list[str]) -> None:
    assert sorted(cited(text)) == sorted(sections)


@pytest.mark.parametrize(
    "text",
    [
        "`large_segment_size_mb` (2.11) replaces LARGE_BUFFER",
        "pools marked use_on_oom (2.8 to 2.10)",
        '"cached" (1.0 to 1.3) is idle memory',
        "set_per_process_memory_fraction(1.0) installs a limit",
        "every other block freed (9 to 14), then 12 MiB asked for (15)",
        "Rule 2: a file that refers to one list",
        "2.11+: above 10, and read first",
        "1,060 of 2,000",
        "A graph's own pool is (n, 0), another (0, 1)",
    ],
)
def test_releases_and_figures_are_no_citations(text: str) -> None:
    assert cited(text) == []


# -- targets of citations ------------------------------------------------------------------


def test_every_section_that_is_cited_is_on_the_page() -> None:
    wrong = [
        f"{place(source, line, number)} cites semantics {number}"
        for source, line, text in everywhere()
        for number in cited(text)
        if number not in HEADINGS
    ]
    assert not wrong


def test_messages_that_cite_a_section_cite_one_that_is_there() -> None:
    """Strings are not prose, but those of the naive model name the rule that ends a script."""
    wrong = [
        f"{source.relative_to(ROOT)}: semantics {match[1]}"
        for source in SOURCES
        if source != Path(__file__)
        for match in re.finditer(r"semantics (\d[\d.]*\d[a-z]?)", source.read_text())
        if match[1] not in HEADINGS
    ]
    assert not wrong


def test_the_page_cites_itself_rightly() -> None:
    """Numbers of chapter 2 may be releases; every other one is a section."""
    text = re.sub(r"```.*?^```|`[^`\n]*`", "", PAGE, flags=re.DOTALL | re.MULTILINE)
    named = set(re.findall(r"(?<![\d.])(?:1|[3-8]|12)\.\d{1,2}[ab]?(?![\d.]*\d)", text))
    assert len(named) > 40
    assert not named - set(HEADINGS)
    assert len(set(HEADINGS)) == len(HEADINGS)


def test_every_file_that_is_named_is_there() -> None:
    wrong = [
        f"{place(source, line, name)} names {name}"
        for source, line, text in everywhere()
        for name in FILE.findall(text)
        if name not in NOT_OURS and name not in ends_of_paths()
    ]
    wrong += [
        f"{page.name} names {name}"
        for page in PAGES
        for name in re.findall(r"`([\w/]+\.py)`", page.read_text())
        if name not in ends_of_paths()
    ]
    assert not wrong


def test_every_module_that_is_named_is_there() -> None:
    wrong = [
        f"{place(source, line, name)} names {name}"
        for source, line, text in everywhere()
        for name in MODULE.findall(text)
        if name.rpartition(".")[2] != "py" and not has_module(name)
    ]
    wrong += [
        f"{page.name} names {name}"
        for page in PAGES
        for name in re.findall(r"(?:from|import|python -m) (allocsim(?:\.\w+)+)", page.read_text())
        if not has_module(name)
    ]
    assert not wrong


# -- references of the page ----------------------------------------------------------------


def test_evidence_is_of_rules_and_tests_that_are_there() -> None:
    """tests/semantics.toml names the tests of each rule of the page."""
    evidence: dict[str, list[str]] = tomllib.loads(EVIDENCE.read_text())
    assert not evidence.keys() - set(HEADINGS)
    rules = {number for number in HEADINGS if "." in number}
    assert rules - evidence.keys() == {"6.4", "12.3"}
    sources = [path.read_text() for path in (ROOT / "tests").rglob("test_*.py")]
    known = {name for source in sources for name in re.findall(r"^def (test_\w+)", source, re.M)}
    named = {name for each in evidence.values() for name in re.findall(r"test_\w+", str(each))}
    files = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    assert not named - known - files


def test_the_page_has_the_fields_that_each_release_changes() -> None:
    """Section 9 is the table of releases.py in words; other sections name each field."""
    table = dict(re.findall(r"^\| (2\.\d+) \| [^\n]*?\|([^|\n]*)\|$", PAGE, re.MULTILINE))
    before = None
    for version, release in RELEASES.items():
        changed = {
            field.name
            for field in fields(release)
            if before is not None
            and field.name != "version"
            and getattr(release, field.name) != getattr(before, field.name)
        }
        assert set(re.findall(r"`(\w+)`", table[version])) == changed, version
        before = release


def test_every_difference_between_releases_stands_at_a_rule() -> None:
    at_rules = " ".join(re.findall(r"\*Releases\*:([^*#]*)", PAGE))
    names = {field.name for field in fields(RELEASES["2.15"])} - {"version"}
    assert set(re.findall(r"`(\w+)`", at_rules)) == names


# -- links between pages -------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub generates them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_links_between_pages_lead_to_headings() -> None:
    wrong = []
    for page in PAGES:
        for name, anchor in re.findall(r"\]\(([\w./-]*)#([\w-]+)\)", page.read_text()):
            target = page.parent / name if name else page
            if not target.exists() or anchor not in anchors(target):
                wrong.append(f"{page.name}: {name}#{anchor}")
    assert not wrong
