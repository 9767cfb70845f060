"""Cards are found under each of their names, and PyTorch sees the card that was named."""

from __future__ import annotations

import json
import os
import subprocess
from dataclasses import asdict, replace

import pytest

from allocsim.errors import ConfigError
from allocsim.phantom import (
    CARDS,
    CONTEXT_MEMORY_SEEN,
    Gpu,
    Limits,
    context_seen,
    find_gpu,
    limits_of,
    named_gpu,
)
from allocsim.phantom.installs import find_torch
from allocsim.phantom.recorder import phantom_environment
from allocsim.units import GIB, KIB, MIB
from tests.pythons import NEEDS_TORCH, PYTHONS


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("4090", "RTX 4090"),
        ("rtx4090", "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("RTX 4090 24GB", "RTX 4090"),
        ("rtx-4090 24 GiB", "RTX 4090"),
        ("RTX 3080 10GB", "RTX 3080"),
        ("RTX 3080", "RTX 3080"),
        ("4060ti 16gb", "RTX 4060 Ti 16GB"),
        ("RTX 4060 Ti 8GB", "RTX 4060 Ti"),
        ("A100", "A100 40GB"),
        ("a100-80", "A100 80GB"),
        ("A100 SXM4 80GB", "A100 80GB"),
        ("A100 80GB PCIe", "A100 PCIe 80GB"),
        ("A40", "A40"),
        ("A10 24GB", "A10"),
        ("H100 SXM5 80GB", "H100"),
        ("H100 PCIe", "H100 PCIe"),
        ("H100 NVL 94GB", "H100 NVL"),
        ("RTX PRO 6000 Blackwell", "RTX PRO 6000"),
        ("B200 192GB", "B200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("7900 xtx", "RX 7900 XTX"),
        ("radeon 7900 xtx", "RX 7900 XTX"),
        ("amd rx 7900 xtx", "RX 7900 XTX"),
        ("1xH100", "H100"),
        ("1 x rtx 4090", "RTX 4090"),
        ("H100:1", "H100"),
        ("1x3090", "RTX 3090"),
        ("4070tis", "RTX 4070 Ti SUPER"),
        ("4080s", "RTX 4080 SUPER"),
        ("orin nano", "Jetson Orin Nano 8GB"),
        ("RTX PRO 6000 Blackwell Server Edition", "RTX PRO 6000"),
        ("rtx 6000 pro", "RTX PRO 6000"),
    ],
)
def test_find_gpu_accepts_many_names(name: str, card: str) -> None:
    assert find_gpu(name) is CARDS[card]


def test_find_gpu_finds_every_card_by_its_name() -> None:
    for short, card in CARDS.items():
        assert find_gpu(short) is card


@pytest.mark.parametrize("name", ["RTX 4090 48GB", "RTX 6000", "A4", "MI9999", ""])
def test_unknown_card_is_refused(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is not known: expected a name of allocsim fit --list-gpus"
    ):
        find_gpu(name)


def test_limits_are_those_of_the_capability_with_the_cache_of_the_card() -> None:
    assert CARDS["RTX 4090"].limits == Limits(1536, 24, 100 * KIB, 99 * KIB, 72 * MIB, 65536)
    assert CARDS["T4"].limits == Limits(1024, 16, 64 * KIB, 64 * KIB, 4 * MIB, 65536)
    assert CARDS["H100"].limits == Limits(2048, 32, 228 * KIB, 227 * KIB, 50 * MIB, 65536)
    with pytest.raises(ConfigError, match=r"compute capability \(5, 2\): expected one of 6\.0"):
        limits_of((5, 2), MIB)


def test_gpu_with_only_a_size_has_the_properties_of_an_a100() -> None:
    assert Gpu("x", GIB).limits == CARDS["A100 40GB"].limits


def test_context_memory_is_within_the_seen_range() -> None:
    least, most = CONTEXT_MEMORY_SEEN
    assert {least <= card.context_memory <= most for card in CARDS.values()} == {True}


@pytest.mark.parametrize(
    ("card", "seen"),
    [("RTX 4060", 112), ("RTX 3070", 180), ("RTX A4000", 204), ("L40S", 298),
     ("RTX 6000 Ada", 426), ("RTX 5090", 600), ("H100", 526.8), ("H100", 862.8), ("H200", 870.8)],
)  # fmt: skip
def test_range_of_a_context_has_what_was_seen_on_the_card(card: str, seen: float) -> None:
    low, high = context_seen(find_gpu(card))
    assert low <= seen * MIB <= high


def test_range_of_a_context_grows_with_the_threads_of_the_card() -> None:
    small, large = (context_seen(find_gpu(name)) for name in ("RTX 4060", "H100"))
    assert small[0] < large[0]
    assert small[1] < large[1]


def test_range_of_a_context_on_an_unknown_card_is_that_of_all_cards() -> None:
    assert context_seen(Gpu("24GiB", 24 * GIB)) == CONTEXT_MEMORY_SEEN


ASK = """
import json, torch
found = torch.cuda.get_device_properties(0)
names = "name total_memory major minor multi_processor_count warp_size L2_cache_size "
names += "max_threads_per_multi_processor regs_per_multiprocessor shared_memory_per_block "
names += "shared_memory_per_block_optin shared_memory_per_multiprocessor"
print(json.dumps({name: getattr(found, name, None) for name in names.split()}))
"""


@pytest.mark.slow
@NEEDS_TORCH
@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("card", ["T4", "A100 80GB", "RTX 4090", "B200"])
def test_pytorch_finds_the_named_card(card: str, python: str) -> None:
    gpu = replace(find_gpu(card), context_memory=0)
    environment = os.environ | phantom_environment(find_torch(python), gpu)
    command = [python, "-c", ASK]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    limits = asdict(gpu.limits)
    expected = {
        "name": gpu.name,
        "total_memory": gpu.memory,
        "major": gpu.capability[0],
        "minor": gpu.capability[1],
        "multi_processor_count": gpu.multiprocessors,
        "warp_size": 32,
        "L2_cache_size": limits["l2"],
        "max_threads_per_multi_processor": limits["threads"],
        "regs_per_multiprocessor": limits["registers"],
        "shared_memory_per_block": 48 * KIB,
        "shared_memory_per_block_optin": limits["block_shared_memory"],
        "shared_memory_per_multiprocessor": limits["shared_memory"],
    }
    # Releases add properties; a property that this release lacks is None.
    found = {name: value for name, value in json.loads(done.stdout).items() if value is not None}
    assert len(found) >= 6
    assert found == {name: expected[name] for name in found}


@pytest.mark.parametrize(
    ("name", "gib", "assumed"),
    [
        ("MI300X", 191.98, "AMD"),
        ("AMD Instinct MI355X", 287.98, "AMD"),
        ("RX 7900 XTX", 23.98, "AMD"),
        ("Arc A770", 15.56, "Intel"),
        ("DGX Spark", 119.68, "unified memory"),
        ("Jetson Orin", 61.37, "unified memory"),
    ],
)
def test_card_of_another_kind_has_its_assumptions(name: str, gib: float, assumed: str) -> None:
    gpu = find_gpu(name)
    assert gpu.memory == pytest.approx(gib * GIB, abs=MIB)
    assert gpu.assumed.startswith(f"{assumed}: ")


def test_find_gpu_accepts_the_name_of_a_machine() -> None:
    assert find_gpu("DGX H100") is find_gpu("H100")
    assert not find_gpu("DGX A100").assumed


@pytest.mark.parametrize(
    ("name", "count", "card"),
    [("2x3090", 2, "3090"), ("8xH100", 8, "h100"), ("A100:8", 8, "a100"), ("h100 x 4", 4, "h100")],
)
def test_several_cards_are_refused_with_the_options(name: str, count: int, card: str) -> None:
    helps = f"is {count} cards: give --gpu '{card}' .*--tensor-parallel {count}; .*--ranks {count}"
    with pytest.raises(ConfigError, match=helps):
        find_gpu(name)


@pytest.mark.parametrize(
    ("name", "first", "other"),
    [("a100", "A100 40GB", "A100 80GB"), ("V100", "V100 16GB", "V100 32GB")],
)
def test_a_name_of_several_cards_tells_which_one_was_chosen(
    name: str, first: str, other: str
) -> None:
    gpu = named_gpu(name)
    assert gpu == CARDS[first]
    assert gpu.notes == (f'card: {name!r} is taken as {first}; --gpu "{other}" is another one',)


@pytest.mark.parametrize(
    "name", ["A100 80GB", "A100 40GB", "RTX 3080", "H100", "NVIDIA A100-SXM4-40GB", "DGX A100"]
)
def test_a_name_of_one_card_has_no_note(name: str) -> None:
    assert not named_gpu(name).chosen


def test_suggestions_are_of_the_family_of_the_card() -> None:
    with pytest.raises(ConfigError, match=r"did you mean RTX 4090\?"):
        find_gpu("RTX 4095")
    with pytest.raises(ConfigError, match=r"did you mean RTX PRO 6000"):
        find_gpu("RTX 6000 PRO X")


@pytest.mark.parametrize("name", ["RTX 4900", "GTX 4090", "RTX4O90"])
def test_cards_of_other_families_are_suggested_if_none_of_the_family_is_similar(name: str) -> None:
    with pytest.raises(ConfigError, match=r"did you mean RTX 4090\b"):
        find_gpu(name)


def test_a_name_that_is_like_no_card_gets_no_suggestion() -> None:
    with pytest.raises(ConfigError, match=r"or --device-memory$"):
        find_gpu("Voodoo")


def test_one_card_of_a_name_of_several_tells_which_one_was_chosen() -> None:
    assert named_gpu("1xA100").chosen == named_gpu("a100").chosen != ""


def test_unknown_card_error_names_similar_cards() -> None:
    with pytest.raises(ConfigError, match=r"did you mean .*RX 7900 XTX"):
        find_gpu("RX 7900 GRX")


def test_only_cards_of_servers_that_have_nvlink_are_connected_by_it() -> None:
    linked, alone = ("V100 16GB", "A100 40GB", "H100", "B300"), ("A100 PCIe 40GB", "T4", "RTX 5090")
    assert all(find_gpu(name).has_nvlink for name in linked)
    assert not any(find_gpu(name).has_nvlink for name in alone)


def test_a_name_with_many_counts_is_refused_in_a_sentence() -> None:
    with pytest.raises(ConfigError, match=r"GPU 'h100:1:1:1.*' is not known"):
        find_gpu("h100" + ":1" * 5000)
