"""Messages about odd input are true, in plain English, and never Python's own text."""

from __future__ import annotations

import io
import json
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator
from tests.cli.test_odd_recordings import IDLE, entry, snapshot

Cli = Callable[..., Any]
PYTHON_S_OWN = ("invalid literal", "could not convert", "index out of range", "Errno", "NoneType")


def said(done: Any) -> str:
    """Return the sentence of a refusal."""
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1
    for words in PYTHON_S_OWN:
        assert words not in done.err
    return str(done.err).removeprefix("allocsim: ").rstrip()


@pytest.mark.parametrize(
    ("lines", "sentence"),
    [
        ("free", "the number of a block is missing; expected a whole number, e.g. 1"),
        ("free x", "'x' is not the number of a block; expected a whole number, e.g. 1"),
        ("free 1", "block 1 is not allocated"),
        ("record", "the number of a block is missing; expected a whole number, e.g. 1"),
        ("malloc 1MiB stream=x", "'x' is not a stream; expected a whole number, e.g. 1"),
        ("begin", "a pool is missing; expected a whole number, e.g. 1"),
        ("release -1", "'-1' is not a pool; expected a whole number, e.g. 1"),
        ("fraction", "the fraction is missing; expected 0 to 1, e.g. 0.5"),
        ("fraction half", "'half' is not a fraction; expected 0 to 1, e.g. 0.5"),
        ("malloc", "size '' is not a number with a unit such as 24GiB or 5600MiB"),
        ("dance", "no such request"),
    ],
)
def test_step_error_names_what_a_line_expected(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, lines: str, sentence: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(lines + "\n"))
    assert said(cli("step")) == f"{lines!r}: {sentence} (help lists the requests)"


@pytest.mark.parametrize("word", ["free", "record", "sync", "begin", "end", "release", "fraction"])
@pytest.mark.parametrize("rest", ["", " x", " -1", " 1.5", f" {'9' * 5000}", " stream=", " ٣"])
def test_step_errors_contain_no_text_of_python(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, word: str, rest: str
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(word + rest + "\n"))
    done = cli("step")
    assert done.code in (0, 2)
    for words in PYTHON_S_OWN:
        assert words not in done.err


@pytest.mark.parametrize(
    ("python", "sentence"),
    [
        ("/bin/true", "/bin/true does not answer as a Python does; expected a Python"),
        ("/bin/false", "/bin/false has no PyTorch; expected a CUDA build of torch"),
        ("/nowhere", "/nowhere cannot be started (No such file or directory); expected a Python"),
        ("/etc/passwd", "/etc/passwd cannot be started (Permission denied); expected a Python"),
    ],
)
def test_crosscheck_refuses_an_interpreter_that_is_not_python(
    cli: Cli, python: str, sentence: str
) -> None:
    assert sentence in said(cli("crosscheck", "--python", python))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--multiple-of 0", "argument --multiple-of: '0' is too small; expected 1 or more"),
        ("--lora 0", "argument --lora: '0' is too small; expected 1 or more"),
        (
            "--batch 1000000000000",
            "argument --batch: '1000000000000' is too large; expected 0 to 999,999,999",
        ),
        ("--batch few", "argument --batch: 'few' is not a whole number, 0 or more"),
    ],
)
def test_count_error_names_the_fault(cli: Cli, words: str, sentence: str) -> None:
    done = cli("fit", "Llama-3.2-1B", "--gpu", "4090", *words.split())
    assert said(done) == f"{sentence} (see allocsim fit --help)"


def test_fit_takes_one_word_after_the_dashes_as_a_program(cli: Cli, tmp_path: Path) -> None:
    sentence = said(cli("fit", "--gpu", "RTX 4090", "--", tmp_path / "no-such-program"))
    assert "model" not in sentence
    assert "is no command; expected a program to run" in sentence


@pytest.mark.parametrize(
    ("size", "sentence"),
    [
        (f"n={'9' * 20}", f"n={'9' * 20} is too large; expected a number up to 999,999,999,999"),
        ("n=x", "'n=x' is not a size; expected a name and a number, e.g. batch=2"),
        ("n", "'n' is not a size; expected a name and a number, e.g. batch=2"),
    ],
)
def test_size_error_names_the_fault(
    cli: Cli, write: Callable[..., Path], size: str, sentence: str
) -> None:
    run = write(lambda gpu: gpu.malloc(512))
    assert said(cli("scale", run, "--at", "n=2", run, "--at", "n=3", "--to", size)) == sentence


def test_gate_distinguishes_a_folder_from_a_missing_baseline(
    cli: Cli, write: Callable[..., Path], tmp_path: Path
) -> None:
    run = write(lambda gpu: gpu.malloc(512))
    for place in (Path("/dev/null"), tmp_path):
        assert said(cli("gate", run, "--baseline", place)) == (
            f"{place} is not a regular file; expected a baseline that --update wrote"
        )
    missing = tmp_path / "missing.json"
    sentence = f"{missing} does not exist; --update writes it"
    assert said(cli("gate", run, "--baseline", missing)) == sentence


def test_watch_refuses_an_empty_folder_name(cli: Cli) -> None:
    assert said(cli("watch", "", "--once")) == "'' is not a folder; expected a folder to watch"


def test_explain_does_not_call_a_state_without_error_full(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "run.pickle"
    path.write_bytes(snapshot(entry("segment_alloc", 2 << 20), segments=(IDLE,)))
    out = " ".join(cli("explain", path).out.split())
    assert out.startswith("Verdict no error is recorded: ")
    assert "the card is full" not in out
    asked = cli("explain", path, "--request", "30MiB", "--device-memory", "20MiB")
    assert asked.out.startswith("Verdict         impossible: "), "a request that was asked about"


def test_idle_memory_reads_as_all_of_it_only_where_it_is(
    cli: Cli, write: Callable[..., Path]
) -> None:
    def one(gpu: CachingAllocator) -> None:
        gpu.malloc(512)

    out = " ".join(cli("replay", write(one), "--no-cure").out.split())
    assert "all but 512 bytes of 2.00 MiB reserved were unused" in out


def test_one_entry_is_printed_in_the_singular(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "in" / "run.pickle"
    path.parent.mkdir()
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[entry("alloc", 512)]]}))
    assert "1 entry" in cli("watch", path.parent, "--once", "--interval", "0.1").out


@pytest.mark.parametrize(
    ("options", "differs"),
    [
        ("", ("4,096 tokens", "1,024 tokens", "2 + 2 + 12", "2 + 2 + 4")),
        ("--seq 512", ("2 + 2 + 12", "2 + 2 + 4")),
        ("--dtype bf16", ("4,096 tokens", "1,024 tokens")),
        ("--seq 512 --dtype bf16", ()),
    ],
)
def test_fit_states_assumptions_of_a_formula_but_not_of_a_law(
    cli: Cli, options: str, differs: tuple[str, ...]
) -> None:
    """Laws and formulas answer the same question with different defaults."""
    words = ["fit", "Llama-3.2-1B", "--gpu", "RTX 4090", "--engine", "formula", *options.split()]
    notes = json.loads(cli(*words, "--json").out)["notes"]
    assert len(notes) == bool(differs)
    for each in differs:
        assert each in notes[0]
    text = " ".join(cli(*words).out.split())
    assert ("Assumed" in text) is bool(differs)
