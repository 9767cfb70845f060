"""`--host-spill` as people type it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

from allocsim.units import GIB
from tests.cli.conftest import Done

Cli = Callable[..., Done]
LENT = ("--device-memory", "1GiB", "--host-spill", "32GiB")


def test_the_answer_says_what_spilled_when_and_whose_it_is(cli: Cli, traces: Path) -> None:
    done = cli("replay", traces / "gpt2-ragged-torch2.15.pickle.gz", *LENT)
    text = " ".join(done.out.split())
    assert done.code == 0
    assert "since the host lends 7.62 GiB that the card has not" in text
    assert "7.62 GiB of 32.00 GiB in the host's memory at most, after entry 26,012" in text
    assert "from entry 529 on" in text
    assert "steps take 1 to 56 times as long" in text
    assert "4.70 GiB allocated after entry 26,012:" in text
    assert max(map(len, done.out.splitlines())) <= 80


def test_the_json_has_it_for_programs(cli: Cli, traces: Path) -> None:
    file = traces / "gpt2-ragged-torch2.15.pickle.gz"
    (device,) = json.loads(cli("replay", file, *LENT, "--json").out)["devices"]
    spill = device["spill"]
    assert spill["lent_bytes"] == 32 * GIB
    assert spill["most_bytes"] == device["peak_reserved_bytes"] - GIB
    assert sum(spill["owners"].values()) < device["peak_allocated_bytes"]
    (device,) = json.loads(cli("replay", file, "--json").out)["devices"]
    assert "spill" not in device


def test_where_the_card_has_room_it_says_that_none_was_needed(cli: Cli, traces: Path) -> None:
    file = traces / "gpt2-ragged-torch2.15.pickle.gz"
    done = cli("replay", file, "--device-memory", "24GiB", "--host-spill", "8GiB", "-v")
    assert "nothing: the card had room for all" in " ".join(done.out.split())


def test_a_cure_is_for_a_device_that_refuses(cli: Cli, traces: Path) -> None:
    done = cli("replay", traces / "gpt2-ragged-torch2.15.pickle.gz", *LENT, "--cure")
    assert done.code == 2
    assert "--cure looks for settings on a device that refuses" in done.err
