"""Conventions of command lines: order of commands, suggestions after a typo, completion."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]


def test_commands_are_listed_in_the_order_of_need_one_line_each(cli: Cli) -> None:
    text = cli("--help").out
    listed = [
        line.split()[0] for line in text.splitlines() if line[:5].strip() and line[:4] == " " * 4
    ]
    assert listed == [
        *("replay", "explain", "top", "compare", "gate", "ranks", "tune", "risk", "fit", "scale"),
        *("report", "plot", "step", "record", "lint", "stats", "watch", "convert", "synth"),
        *("colocate", "crosscheck"),
    ]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ("repaly x", "'colocate', 'crosscheck'); did you mean replay? (see allocsim --help)"),
        ("top x --by modul", "did you mean module? (see allocsim top --help)"),
        ("synth trainin -o x", "did you mean training? (see allocsim synth --help)"),
        (
            "replay x --josn",
            "unrecognized arguments: --josn; did you mean --json? (see allocsim replay --help)",
        ),
        (
            "synth training -o x --sede=3",
            "--sede=3; did you mean --seed? (see allocsim synth training --help)",
        ),
        (
            "report x --ouptut y",
            "the following arguments are required: -o/--output; --ouptut is not an option; "
            "did you mean --output? (see allocsim report --help)",
        ),
        ("--verison", "unrecognized arguments: --verison; did you mean --version?"),
        (
            "replay x garbage_collection_threshold:0.9",
            "0.9; did you mean --conf garbage_collection_threshold:0.9? (see",
        ),
        ("record --gpuu x -- python --gpus", "--gpuu; did you mean --gpu?"),
    ],
)
def test_parser_suggests_the_option_that_was_meant(cli: Cli, arguments: str, sentence: str) -> None:
    done = cli(*arguments.split())
    assert (done.code, done.out) == (2, "")
    assert sentence in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments", ["frobnicate", "replay x --zzz", "record -- python --josn", "lint backend"]
)
def test_unlike_word_gets_no_suggestion(cli: Cli, arguments: str) -> None:
    assert "did you mean" not in cli(*arguments.split()).err


def completed(script: str, *words: str) -> set[str]:
    """Return the completions that bash offers for the last word."""
    line = " ".join(f"'{word}'" for word in words)
    asked = f"COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _shtab_allocsim"
    output = 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(
        ["bash", "-c", f"{script}\n{asked}\n{output}"],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_bash_completes_commands_options_values_and_files(cli: Cli) -> None:
    pytest.importorskip("shtab", reason="needs the package shtab (allocsim[completion])")
    done = cli("--print-completion", "bash")
    assert (done.code, done.err) == (0, "")
    assert completed(done.out, "allocsim", "re") == {"replay", "report", "record"}
    assert completed(done.out, "allocsim", "replay", "--str") == {"--strict"}
    assert {"line", "category"} < completed(done.out, "allocsim", "top", "x", "--by", "")
    assert completed(done.out, "allocsim", "replay", "READ") == {"README.md"}


@pytest.mark.parametrize("shell", ["zsh", "fish", "tcsh"])
def test_completion_scripts_exist_for_other_shells(cli: Cli, shell: str) -> None:
    pytest.importorskip("shtab", reason="needs the package shtab (allocsim[completion])")
    done = cli("--print-completion", shell)
    assert (done.code, done.err) == (0, "")
    assert "crosscheck" in done.out


def test_completion_without_shtab_is_refused_in_a_sentence(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    done = cli("--print-completion", "bash")
    assert (done.code, done.out) == (2, "")
    assert done.err == (
        "allocsim: --print-completion needs the package shtab: pip install 'allocsim[completion]'\n"
    )
