"""Tests of `allocsim scale`: recordings with their sizes, and a size to predict."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import Done

Cli = Callable[..., Done]


@pytest.fixture
def pair(traces: Path) -> list[object]:
    sized = traces / "sized"
    return [sized / "batch2.npz.gz", "--at", "batch=2", sized / "batch3.npz.gz", "--at", "batch=3"]


def test_scale_reports_the_peak_and_its_grounds(cli: Cli, pair: list[object]) -> None:
    done = cli("scale", *pair, "--to", "batch=16")
    assert done.code == 0
    assert "batch=16 reserves 21.53 GiB at the peak" in done.out
    assert "Not proved" in done.out
    assert "Beyond" in done.out
    assert all(len(line) <= 80 for line in done.out.splitlines() if "/" not in line)


def test_scale_checks_the_law_with_a_third_recording(
    cli: Cli, pair: list[object], traces: Path
) -> None:
    third = traces / "sized" / "batch8.npz.gz"
    done = cli("scale", *pair, third, "--at", "batch=8", "--to", "batch=4")
    assert done.code == 0
    assert "Checked" in done.out
    assert "Not proved" not in done.out
    assert "Beyond" not in done.out


def test_scale_finds_the_largest_size_for_a_device(cli: Cli, pair: list[object]) -> None:
    done = cli("scale", *pair, "--find", "batch", "--device-memory", "24GiB", "--json")
    answer = json.loads(done.out)
    assert (answer["find"], answer["largest"]) == ("batch", 17)
    assert answer["failing"]["at"] == {"batch": 18}
    assert answer["failing"]["fits"] is False
    assert answer["fitting"]["peak_reserved_bytes"] == 24_582_815_744
    assert not answer["is_proved"]
    done = cli("scale", *pair, "--find", "batch", "--gpu", "RTX 4090")
    assert "batch=17 is the largest that fits" in done.out
    done = cli("scale", *pair, "--find", "batch", "--device-memory", "1GiB")
    assert "not even batch=1 fits" in done.out


@pytest.fixture
def layers(traces: Path) -> list[object]:
    sized = traces / "sized"
    pairs = [(sized / f"layers{n}.npz.gz", "--at", f"layers={n}") for n in (2, 3, 5)]
    return [word for pair in pairs for word in pair]


def test_scale_finds_the_largest_batch_for_several_lengths(cli: Cli, traces: Path) -> None:
    four: list[object] = []
    for batch in (2, 3):
        for suffix, length in (("", 2048), ("-sequence2560", 2560)):
            file = traces / "sized" / f"batch{batch}{suffix}.npz.gz"
            four += [file, "--at", f"batch={batch}", f"sequence={length}"]
    words = [*four, "--find", "batch,sequence", "--device-memory", "9GiB"]
    done = cli("scale", *words)
    assert done.code == 0
    text = " ".join(done.out.split())
    assert re.search(r"the largest batch that fits 9\.00 GiB .*: 6 at sequence=2,048, \d", text)
    assert "batch=6,sequence=2048" in text, "outside of what was recorded"
    document = json.loads(cli("scale", *words, "--json", "--with", "sequence=2304").out)
    (row,) = document["frontier"]
    assert (document["find"], row["at"]) == (["batch", "sequence"], {"sequence": 2304})
    assert row["largest"] == row["fitting"]["at"]["batch"] == row["failing"]["at"]["batch"] - 1
    small = [*four, "--find", "batch,sequence", "--device-memory", "700MiB", "--fail-on-oom"]
    done = cli("scale", *small)
    assert done.code == 3
    assert "none at sequence=2,048, none at sequence=2,560" in " ".join(done.out.split())


def test_more_layers_than_were_recorded(cli: Cli, layers: list[object]) -> None:
    done = cli("scale", *layers, "--to", "layers=80")
    assert done.code == 0
    assert "Grows" in done.out
    assert "copies of their neighbours" in done.out
    assert "Checked         layers=5" in done.out
    assert "each step of layers" in done.out
    answer = json.loads(cli("scale", *layers, "--to", "layers=24", "--json").out)
    assert (answer["grows"]["name"], answer["grows"]["step"]) == ("layers", 1)
    assert answer["is_proved"]
    pair = layers[:6]
    assert "Not proved" in cli("scale", *pair, "--to", "layers=24").out


def test_scale_finds_the_most_layers_for_a_device(cli: Cli, layers: list[object]) -> None:
    done = cli("scale", *layers, "--find", "layers", "--device-memory", "6GiB", "--json")
    answer = json.loads(done.out)
    assert answer["fitting"]["fits"]
    assert answer["failing"]["at"] == {"layers": answer["largest"] + 1}
    done = cli("scale", *layers, "--find", "layers", "--device-memory", "1GiB")
    assert "not even layers=2 fits" in done.out


def test_scale_reports_a_size_that_does_not_fit(cli: Cli, pair: list[object]) -> None:
    options = ["--to", "batch=18", "--device-memory", "24GiB"]
    done = cli("scale", *pair, *options, "--fail-on-oom")
    assert done.code == 3
    assert "batch=18 runs out of memory on 24.00 GiB" in done.out
    assert "a request that needs" in done.out
    assert "2 retries" in done.out


def test_scale_writes_the_predicted_recording(cli: Cli, pair: list[object], tmp_path: Path) -> None:
    out = tmp_path / "batch4.npz"
    assert cli("scale", *pair, "--to", "batch=4", "-o", out).code == 0
    done = cli("replay", out, "--strict", "--no-cure")
    assert done.code == 0
    assert "all addresses as recorded" in done.out
    assert "5.54 GiB reserved at the peak" in done.out


def test_scale_refuses_wrong_input_in_a_sentence(
    cli: Cli, pair: list[object], tmp_path: Path
) -> None:
    first, second = pair[0], pair[3]
    for argv, said in (
        ([*pair, "--to", "batch"], "'batch' is not a size"),
        ([*pair, "--to", "batch=0"], "expected 1 or more"),
        ([*pair, "--to", "batch=2", "batch=3"], "batch is given as 2 and as 3"),
        ([*pair, "--to", f"batch={10**12 - 1}"], "follows no law"),
        ([*pair, "--to", "batch=4", "--with", "batch=3"], "with --to, give all sizes there"),
        ([*pair, "--find", "batch"], "--find needs the device"),
        ([*pair, "--find", "batch", "--find", "layers", "--gpu", "L4"], "expected one --find"),
        ([*pair, "--find", "layers", "--gpu", "L4"], "the sizes that vary are batch"),
        ([*pair, "--find", "batch,batch", "--gpu", "L4"], "are the same size; expected two"),
        ([*pair, "--find", "a,b,c", "--gpu", "L4"], "expected one size, or two"),
        ([*pair, "--find", "batch,n", "--gpu", "L4", "--with", "n=x"], "expected values, e.g. n="),
        ([*pair, "--find", "batch,n", "--gpu", "L4", "-o", tmp_path / "x.npz"], "one size"),
        ([*pair, "--find", "batch,n", "--gpu", "L4"], "no recording has a size n"),
        ([*pair, "--to", "batch=4", "--gpu", "L4", "--device-memory", "1GiB"], "expected one"),
        ([*pair, "--to", "batch=4", "-o", first], "is also the input"),
        ([*pair, "--to", "batch=4", "-o", tmp_path / "x.txt"], "does not end in"),
        ([*pair, "--to", "batch=4", "-o", tmp_path / "no" / "x.npz"], "cannot be written"),
        ([first, "--at", "batch=2", second, "--to", "batch=4"], "is not a size"),
        ([first, "--at", "batch=2", "--at", "batch=3", "--to", "batch=4"], "the next recording"),
        ([first, "--at", "batch=2", "--to", "batch=4"], "expected two sizes or more"),
        ([first, "--to", "batch=4"], "--at"),
    ):
        done = cli("scale", *argv)
        assert (done.code, done.out) == (2, ""), argv
        assert said in done.err, argv
        assert len(done.err.splitlines()) == 1
