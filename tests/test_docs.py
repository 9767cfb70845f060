"""The snippets, commands and outputs in docs/ and CONTRIBUTING.md are correct.

The ```python blocks of a page share one namespace, in order. A ```text block directly after a block
shows its output; a line "..." matches any lines. In ```sh blocks, lines that begin with `allocsim`
or `python -m` are run. `<!-- slow -->` above a block leaves it to `make test-slow`, and so does
`<!-- slow: needs the real allocators -->`, which is skipped if the cache lacks them; `<!-- not run:
WHY -->` is never run.
"""

from __future__ import annotations

import contextlib
import io
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import allocsim
from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.core import NEWEST, TraceEntry
from allocsim.errors import UnavailableError
from allocsim.verify import RealAllocator, Script

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(
    r"^(?:<!-- (?P<marker>[^\n]*) -->\n)?"
    r"```(?P<language>\w+)\n(?P<text>.*?)^```$"
    r"(?:\n+```text\n(?P<output>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
COMMANDS = ("allocsim ", "python -m ")
HANDLE = 4096
"""Raw handle of stream 1 of an op script; the pages use multiples of it."""


@dataclass(frozen=True, slots=True)
class Block:
    """Fenced block.

    line: line of its first character.
    output: output shown after it.
    """

    page: Path
    line: int
    language: str
    text: str
    output: str | None
    marker: str

    @property
    def is_slow(self) -> bool:
        return self.marker.startswith("slow")

    @property
    def is_run(self) -> bool:
        return not self.marker.startswith("not run")


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    return [
        Block(
            page,
            text.count("\n", 0, found.start("text")) + 1,
            found["language"],
            found["text"],
            found["output"],
            found["marker"] or "",
        )
        for found in BLOCK.finditer(text)
    ]


def snippets(page: Path, *, slow: bool) -> list[Block]:
    found = [block for block in blocks(page) if block.language == "python" and block.is_run]
    return [block for block in found if slow or not block.is_slow]


def commands() -> Iterator[Any]:
    """Yield (command, shown output) of every page, as parameters of a test."""
    for block in (block for page in PAGES for block in blocks(page)):
        if block.language == "sh" and block.is_run:
            lines = [line for line in block.text.splitlines() if line.startswith(COMMANDS)]
            for line in lines:
                marks = [pytest.mark.slow] if block.is_slow else []
                shown = block.output if line == lines[-1] else None
                yield pytest.param(line, shown, marks=marks, id=f"{block.page.name}:{block.line}")


def shows(shown: str, output: str) -> bool:
    """Return True if `output` has the shown lines in order; "..." matches any lines."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else re.escape(line) + r"\n" for line in shown.splitlines()
    )
    return re.fullmatch(pattern, output) is not None


def execute(page: Path, *, slow: bool = False) -> None:
    """Run the snippets of a page; the first with another output fails."""
    namespace: dict[str, Any] = {"__name__": page.stem}
    for block in snippets(page, slow=slow):
        place = f"{page.name}:{block.line}"
        source = "\n" * (block.line - 1) + block.text
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(source, place, "exec"), namespace)  # noqa: S102
        if block.output is not None:
            assert shows(block.output, printed.getvalue()), f"{place}\n{printed.getvalue()}"


def named(page: Path) -> str:
    return page.name


@pytest.mark.parametrize("page", [p for p in PAGES if snippets(p, slow=False)], ids=named)
def test_snippets_print_what_the_page_shows(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    execute(page)


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [p for p in PAGES if any(b.is_slow for b in snippets(p, slow=True))], ids=named
)
def test_slow_snippets_too(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    try:
        execute(page, slow=True)
    except UnavailableError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize(("command", "shown"), list(commands()))
def test_commands_do_what_the_page_shows(command: str, shown: str | None) -> None:
    words = shlex.split(command)
    arguments = words[1:] if words[0] == "python" else ["-m", *words]
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    if shown is not None:
        assert shows(shown, done.stdout), done.stdout


def test_every_file_that_a_page_names_is_there() -> None:
    for page in PAGES:
        named = r"`((?:allocsim|traces|tests|benchmarks|docs)/[\w./-]*)`"
        for name in re.findall(named, page.read_text()):
            assert (ROOT / name).exists(), f"{page.name}: {name}"


class Witness(CachingAllocator):
    """The model's allocator, which also records the operations of a page."""

    made: ClassVar[list[Witness]] = []

    def __init__(
        self,
        device_memory: int | str = "16GiB",
        conf: str = "",
        torch_version: str = NEWEST,
        **options: Any,
    ) -> None:
        self.ops: list[list[Any]] = []
        super().__init__(device_memory, conf, torch_version, **options | {"record_history": True})
        self.ops.clear()
        self.conf = conf
        self.policy = options.get("address_policy", "bump")
        self.answers: list[int | None] = []
        self.texts: list[str] = []
        self.entries: list[TraceEntry] = []
        self.names: dict[int, int] = {}
        self.made.append(self)

    def malloc(self, size: int, stream: int = 0) -> int | None:
        name = len(self.answers)
        self.ops.append(["a", name, size, stream // HANDLE])
        address = None
        try:
            address = super().malloc(size, stream)
        except OutOfMemoryError as error:
            self.texts.append(str(error))
            raise
        finally:
            self.answers.append(address)
        if address is not None:
            self.names[address] = name
        return address

    def free(self, ptr: int | None) -> None:
        if ptr is not None:
            self.ops.append(["f", self.names[ptr]])
        super().free(ptr)

    def record_stream(self, ptr: int, stream: int) -> None:
        self.ops.append(["r", self.names[ptr], stream // HANDLE])
        super().record_stream(ptr, stream)

    def synchronize(self, stream: int | None = None) -> None:
        self.ops.append(["S"] if stream is None else ["s", stream // HANDLE])
        super().synchronize(stream)

    def empty_cache(self, pool: Any = None) -> None:
        self.ops.append(["e"] if pool is None else ["P", "v", pool])
        super().empty_cache(pool)

    def begin_allocate_to_pool(self, pool: Any, **options: Any) -> None:
        marks = [int(options.get(mark, False)) for mark in ("no_split", "use_on_oom")]
        self.ops.append(["P", "b", pool, *(marks if any(marks) else ())])
        super().begin_allocate_to_pool(pool, **options)

    def end_allocate_to_pool(self, pool: Any) -> None:
        self.ops.append(["P", "e", pool])
        super().end_allocate_to_pool(pool)

    def release_pool(self, pool: Any) -> None:
        self.ops.append(["P", "r", pool])
        super().release_pool(pool)

    def delete_mempool(self, pool: Any) -> None:
        self.ops.append(["P", "l", pool])
        super().delete_mempool(pool)

    def set_allocator_settings(self, conf: str) -> None:
        self.ops.append(["c", conf])
        super().set_allocator_settings(conf)

    def set_per_process_memory_fraction(self, fraction: float) -> None:
        self.ops.append(["m", fraction])
        super().set_per_process_memory_fraction(fraction)

    def reset_peak_memory_stats(self) -> None:
        self.ops.append(["k"])
        super().reset_peak_memory_stats()

    def take_history(self) -> list[TraceEntry]:
        taken = super().take_history()
        self.entries += taken
        return taken

    def differences(self) -> Iterator[str]:
        """Yield the differences between the model and the real allocator."""
        script = Script(self.ops, self.device.total, self.conf, self.policy)
        real = RealAllocator(self.release.version).run(script)
        self.take_history()
        trace = [[e.action, e.address, e.size, e.stream // HANDLE] for e in self.entries]
        ours = {
            "addresses": self.answers,
            "messages": self.texts,
            "trace": [entry for entry in trace if entry[0] != "snapshot"],
            "stopped": None,
        }
        theirs = {
            "addresses": real.addresses,
            "messages": real.messages,
            "trace": [list(entry) for entry in real.trace if entry[0] != "snapshot"],
            "stopped": real.stopped,
        }
        flat = self.memory_stats()
        for key, value in real.stats.items():
            columns = [f"{key}.{column}" for column in ("current", "peak", "allocated", "freed")]
            theirs[key] = list(value) if isinstance(value, (list, tuple)) else value
            ours[key] = flat[key] if key in flat else [flat[column] for column in columns]
        for key, value in theirs.items():
            if ours[key] != value:
                yield f"{self.release.version} {self.conf!r} {key}: {ours[key]}, really {value}"


@pytest.mark.slow
def test_the_real_allocator_does_what_the_theory_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every allocator of docs/concepts/allocator.md, repeated on the real release."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(allocsim, "CachingAllocator", Witness)
    monkeypatch.setattr(Witness, "made", [])
    execute(ROOT / "docs" / "concepts" / "allocator.md", slow=True)
    asked = 0
    for witness in Witness.made:
        try:
            assert list(witness.differences()) == []
            asked += 1
        except UnavailableError:
            continue
    if not asked:
        pytest.skip("no release is in the cache")
