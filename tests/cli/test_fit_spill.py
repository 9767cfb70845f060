"""Tests of `allocsim fit --host-spill`: the driver extends the card by host memory."""

from __future__ import annotations

import json
from collections.abc import Callable

from allocsim.units import GIB
from tests.cli.conftest import Done
from tests.cli.test_fit import batches
from tests.fitting.conftest import Pretended, pretend

__all__ = ["pretend"]  # a fixture

Cli = Callable[..., Done]
Pretend = Callable[..., Pretended]
THIRTY = ("fit", "gpt2", "--gpu", "RTX 4090", "--batch", "30")


def test_what_does_not_fit_alone_runs_with_the_hosts_memory(cli: Cli, pretend: Pretend) -> None:
    pretend(batches)
    done = cli(*THIRTY, "--host-spill", "32GiB")
    text = " ".join(done.out.split())
    assert done.code == 0
    assert "runs on NVIDIA GeForce RTX 4090 with 6.85 GiB of the host's memory, slower" in text
    assert "at most 6.85 GiB of 32.00 GiB in host memory" in text
    assert "requested since then and in use: " in text
    assert max(map(len, done.out.splitlines())) <= 80


def test_the_json_has_both_answers(cli: Cli, pretend: Pretend) -> None:
    pretend(batches)
    answer = json.loads(cli(*THIRTY, "--host-spill", "32GiB", "--json").out)
    assert answer["fits"] is False
    assert answer["spill"]["runs"] is True
    assert answer["spill"]["lent_bytes"] == 32 * GIB
    assert sum(answer["spill"]["owners"].values()) == 7 * GIB
    assert "spill" not in json.loads(cli(*THIRTY, "--json").out)


def test_a_loan_that_is_too_small_helps_nothing(cli: Cli, pretend: Pretend) -> None:
    pretend(batches)
    done = cli(*THIRTY, "--host-spill", "2GiB")
    assert done.code == 3
    assert "does not fit NVIDIA GeForce RTX 4090" in done.out


def test_a_loan_is_for_programs_and_for_one_size(cli: Cli, pretend: Pretend) -> None:
    pretend(batches)
    done = cli("fit", "gpt2", "--gpu", "L4", "--find", "batch", "--host-spill", "2GiB")
    assert (done.code, "--host-spill has no effect with --find" in done.err) == (2, True)
    done = cli("fit", "gpt2", "--gpu", "L4", "--zero", "1", "--host-spill", "2GiB")
    assert (done.code, "--host-spill applies to a program that runs" in done.err) == (2, True)
