"""Tests of `allocsim explain` with a text, a log and standard input, and of refused arguments."""

from __future__ import annotations

import gzip
import io
import json
import lzma
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Cli = Callable[..., Any]
TEXT = (
    "CUDA out of memory. Tried to allocate 694.00 MiB. GPU 0 has a total capacity of 5.47 GiB of "
    "which 396.00 MiB is free. Of the allocated memory 4.63 GiB is allocated by PyTorch, and "
    "462.32 MiB is reserved by PyTorch but unallocated."
)
OTHER = TEXT.replace("694.00 MiB", "2.00 GiB")
FIGURES = {
    "tried_bytes",
    "total_bytes",
    "allocated_bytes",
    "reserved_bytes",
    "idle_bytes",
    "free_bytes",
    "limit_bytes",
    "process_bytes",
    "pool_bytes",
    "others_bytes",
    "largest_bytes",
}


def causes(outcome: Any) -> list[str]:
    """Return the cause of each error in the JSON output."""
    assert (outcome.code, outcome.err) == (0, "")
    document = json.loads(outcome.out)
    return [found["cause"] for found in document.get("ooms", [document])]


def refused(outcome: Any, *words: str) -> None:
    assert outcome.code == 2
    assert outcome.out == ""
    assert outcome.err.startswith("allocsim: ")
    assert outcome.err.count("\n") == 1
    for word in words:
        assert word in outcome.err


def given_on_standard_input(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))


def test_explain_begins_with_the_verdict_and_fits_the_terminal(cli: Cli) -> None:
    outcome = cli("explain", TEXT)
    assert (outcome.code, outcome.err) == (0, "")
    lines = outcome.out.splitlines()
    assert lines[0].startswith("Verdict         fragmentation_likely: ")
    assert "694.00 MiB tried <= 858.32 MiB = 462.32 MiB idle + 396.00 MiB" in outcome.out
    assert "expandable_segments:True" in outcome.out
    assert max(map(len, lines)) <= 80


def test_explain_json_of_one_error_is_an_object(cli: Cli) -> None:
    outcome = cli("explain", TEXT, "--json")
    document = json.loads(outcome.out)
    assert document["cause"] == "fragmentation_likely"
    assert set(document["figures"]) == FIGURES
    assert document["figures"]["tried_bytes"] == 694 << 20
    assert document["figures"]["reserved_bytes"] is None
    assert all(isinstance(sentence, str) for sentence in document["advice"])


def test_explain_json_of_several_errors_is_a_list(cli: Cli) -> None:
    document = json.loads(cli("explain", f"{TEXT}\n{OTHER}", "--json").out)
    assert [oom["cause"] for oom in document["ooms"]] == ["fragmentation_likely", "full"]
    for oom in document["ooms"]:
        assert {"figures", "advice", "entry", "kinds", "blockers", "cures"} <= set(oom)


def test_explain_reads_a_log_file(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    log.write_text(f"step 1\n{TEXT}\nstep 2\n{OTHER}\n")
    assert causes(cli("explain", log, "--json")) == ["fragmentation_likely", "full"]
    shown = cli("explain", log, "-v").out
    assert "== line 2 ==" in shown
    assert "== line 4 ==" in shown
    for pack in (gzip.compress, lzma.compress):
        (tmp_path / "packed").write_bytes(pack(log.read_bytes()))
        found = causes(cli("explain", tmp_path / "packed", "--json"))
        assert found == ["fragmentation_likely", "full"]


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "latin-1"])
def test_logs_of_other_encodings(cli: Cli, tmp_path: Path, encoding: str) -> None:
    log = tmp_path / "log"
    log.write_bytes(f"Störung: {TEXT}".encode(encoding))
    assert causes(cli("explain", log, "--json")) == ["fragmentation_likely"]


def test_explain_reads_a_json_log_as_text(cli: Cli, tmp_path: Path) -> None:
    log = tmp_path / "log.json"
    log.write_text(json.dumps({"level": "error", "message": f"Traceback\n{TEXT}"}))
    assert causes(cli("explain", log, "--json")) == ["fragmentation_likely"]


def test_explain_reads_standard_input(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    for arguments in (("explain", "-", "--json"), ("explain", "--json")):
        given_on_standard_input(monkeypatch, TEXT.encode())
        assert causes(cli(*arguments)) == ["fragmentation_likely"]


def test_errors_that_repeat_are_shown_once(cli: Cli) -> None:
    screen = cli("explain", f"{TEXT}\n" * 5 + OTHER).out
    assert "line 1, 5 times: fragmentation_likely" in screen
    assert screen.count("Verdict") == 1
    shown = cli("explain", f"{TEXT}\n" * 5 + OTHER, "-v").out
    assert "== line 1 to 5, 5 times ==" in shown
    assert shown.count("Verdict") == 2
    many = "\n".join(TEXT.replace("694", str(650 + i)) for i in range(30))
    assert "20 more errors" in cli("explain", many, "-v").out
    assert "(26 earlier errors)" in cli("explain", many).out


def test_settings_are_taken_into_account(cli: Cli) -> None:
    outcome = cli("explain", TEXT, "--conf", "expandable_segments:True", "--torch", "2.9")
    assert "is set already" in outcome.out
    memory = cli("explain", TEXT, "--device-memory", "8GiB").out
    assert "On a card of 8.00 GiB" in memory


def test_text_that_could_steer_a_terminal_is_escaped(cli: Cli) -> None:
    shown = cli("explain", f"\x07\x9b2J{TEXT}\n\x1b]0;x\x07{OTHER}").out
    assert all(character.isprintable() or character == "\n" for character in shown)


def test_explain_accepts_a_text_longer_than_a_file_name(cli: Cli) -> None:
    assert causes(cli("explain", f"{'x ' * 9000}\0{TEXT}", "--json")) == ["fragmentation_likely"]


def test_text_without_an_error_has_a_verdict(cli: Cli) -> None:
    outcome = cli("explain", "it does not work")
    assert outcome.code == 0
    assert outcome.out.startswith("Verdict         no_figures")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("out.txtt", "out.txt"),
        ("snapshot.pikle", "snapshot.pickle"),
        ("my run.lgo", "my run.log"),
        ("logs/err.out", "logs/err.log"),
        ("snapshot", "snapshot.pickle"),
        ("elsewhere.oops", ""),
    ],
)
def test_mistyped_file_name_is_no_text(
    name: str, meant: str, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("logs").mkdir()
    for each in ("out.txt", "snapshot.pickle", "my run.log", "logs/err.log"):
        Path(each).write_text(TEXT)
    outcome = cli("explain", name)
    refused(outcome, f"{name}: does not exist")
    assert outcome.err.rstrip().endswith(f"did you mean {meant}?" if meant else "recording's file")


def test_error_text_that_resembles_a_file_name_is_read(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("torch.OutOfMemoryError.txt").touch()
    assert causes(cli("explain", "torch.OutOfMemoryError", "--json")) == ["no_figures"]
    Path("train.py").touch()
    assert cli("explain", "RuntimeError in train.py").code == 0


def test_explain_refuses_wrong_input(
    cli: Cli, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused(cli("explain", ""), "empty")
    refused(cli("explain", tmp_path), "is a directory")
    refused(cli("explain", "."), "is a directory")
    refused(cli("explain", tmp_path / "train.log"), "does not exist")
    refused(cli("explain", "snapshot.pickle"), "does not exist, expected a log or a recording")
    (tmp_path / "noise.log").write_bytes(bytes(range(256)))
    refused(cli("explain", tmp_path / "noise.log"), "is neither text nor a recording")
    (tmp_path / "empty").write_bytes(b"")
    refused(cli("explain", tmp_path / "empty"), "empty")
    refused(cli("explain", TEXT, "--conf", "nonsense:1"), "nonsense")
    refused(cli("explain", TEXT, "--torch", "9.9"), "9.9")
    refused(cli("explain", TEXT, "--device-memory", "lots"), "lots")
    given_on_standard_input(monkeypatch, (traces / "README.md").read_bytes()[:0])
    refused(cli("explain"), "standard input", "empty")
    given_on_standard_input(monkeypatch, b"\x80\x04.")
    refused(cli("explain"), "standard input", "no text")
