"""Decisions of `step` agree with docs/concepts/allocator.md and with recordings."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from allocsim import CachingAllocator, load
from allocsim.analysis.step import Decision, Request, step, walk_on
from allocsim.errors import RecordingError
from allocsim.recording import Action
from allocsim.replaying import Walk, prepare
from allocsim.units import MIB
from allocsim.workload import KINDS, oom

ROOT = Path(__file__).parents[2]
RAGGED = ROOT / "traces" / "gpt2-ragged-torch2.15.pickle.gz"


class Session:
    """Allocator with a decision for each request."""

    def __init__(self, memory: str = "16GiB", conf: str = "") -> None:
        self.gpu = CachingAllocator(memory, conf, record_history=True)

    def malloc(self, size: int, stream: int = 0) -> Decision:
        return step(self.gpu, Request("malloc", size, stream=stream))

    def free(self, made: Decision) -> Decision:
        return step(self.gpu, Request("free", address=made.address))


def texts(decision: Decision) -> dict[str, str]:
    return {rule.name: rule.text for rule in decision.rules}


def test_a_thousand_bytes_become_1024_of_the_small_pool() -> None:
    said = texts(Session().malloc(1000))
    assert said["rounding"] == "1,000 -> 1,024 bytes: up to the next multiple of 512"
    assert said["pool"] == "small pool: up to 1,048,576 bytes"
    assert said["cudaMalloc"].startswith("a new segment of 2,097,152 bytes")
    assert "2,097,152 - 1,024 = 2,096,128 bytes are cut off" in said["split"]


@pytest.mark.parametrize(
    ("request_bytes", "block", "segment"),
    [
        (1, 512, 2_097_152),
        (MIB, 1_048_576, 2_097_152),
        (MIB + 1, 1_049_088, 20_971_520),
        (10 * MIB - 511, 10_485_760, 10_485_760),
        (10 * MIB + 1, 10_486_272, 12_582_912),
    ],
)
def test_the_sizes_are_those_of_the_table(request_bytes: int, block: int, segment: int) -> None:
    said = texts(Session().malloc(request_bytes))
    assert f"-> {block:,} bytes" in said["rounding"]
    assert f"a new segment of {segment:,} bytes" in said["cudaMalloc"]


def test_power_of_two_rounding_is_named() -> None:
    said = texts(Session(conf="roundup_power2_divisions:4").malloc(5 * MIB + 1))
    assert said["rounding"] == (
        "5,242,881 -> 6,291,456 bytes: roundup_power2_divisions, 4 steps between two powers of two"
    )


def test_the_best_fit_is_found_among_its_candidates() -> None:
    session = Session()
    for made in [session.malloc(size * MIB) for size in (40, 20, 30)]:
        session.free(made)
    taken = session.malloc(25 * MIB)
    assert taken.address == 60 * MIB
    assert [(c.size // MIB, c.verdict) for c in taken.candidates] == [
        (20, "too small"),
        (30, "taken"),
        (40, "larger"),
    ]


def test_exactly_one_mib_left_is_not_split() -> None:
    session = Session()
    session.free(session.malloc(20 * MIB))
    said = texts(session.malloc(19 * MIB))
    assert "are not more than 1,048,576: the block stays whole" in said["no split"]


def test_a_free_joins_both_neighbours() -> None:
    session = Session()
    a, b, c = (session.malloc(size * MIB) for size in (3, 5, 2))
    assert "neither neighbour is" in texts(session.free(a))["no merge"]
    session.free(c)
    said = texts(session.free(b))
    assert said["merge"] == (
        "5,242,880 bytes join the free 3,145,728 before it and 12,582,912 behind it: "
        "20,971,520 in all"
    )
    assert "cached" in said


def test_rules_of_a_retry_are_in_the_order_of_its_attempts() -> None:
    session = Session("40MiB")
    first = session.malloc(16 * MIB)
    session.malloc(16 * MIB)
    session.free(first)
    decision = session.malloc(20 * MIB)
    names = [rule.name for rule in decision.rules]
    assert names[2:] == [
        "no fit",
        "cudaMalloc",
        "retry",
        "release all",
        "cudaMalloc",
        "no split",
    ]
    assert [entry.action for entry in decision.entries] == [
        "segment_free",
        "segment_alloc",
        "alloc",
    ]
    moved = {m.key: (m.before, m.after) for m in decision.moved}
    assert moved["num_alloc_retries"] == (0, 1)


def test_collected_garbage_is_not_taken_for_a_retry() -> None:
    session = Session("1GiB", "garbage_collection_threshold:0.5")
    session.gpu.set_per_process_memory_fraction(0.25)
    a, b, c = (session.malloc(size * MIB) for size in (60, 50, 40))
    session.free(a)
    session.free(c)
    session.free(session.malloc(40 * MIB))
    session.free(b)
    said = texts(session.malloc(70 * MIB))
    assert said["collection"].startswith("1 segment with 62,914,560 bytes released")
    assert "retry" not in said


def test_max_split_size_refuses_a_suitable_block() -> None:
    session = Session(conf="max_split_size_mb:64")
    session.free(session.malloc(530 * MIB))
    decision = session.malloc(270 * MIB)
    assert "max_non_split_rounding_mb allows less than 20,971,520" in texts(decision)["refused"]
    assert [c.verdict for c in decision.candidates] == ["refused"]


def test_a_pending_block_waits_and_is_polled() -> None:
    session, side = Session(), 4096
    block = session.malloc(30 * MIB)
    step(session.gpu, Request("record_stream", address=block.address, stream=side))
    assert "pending" in texts(session.free(block))
    assert "no fit" in texts(session.malloc(30 * MIB))
    step(session.gpu, Request("synchronize", stream=side))
    again = session.malloc(30 * MIB)
    assert again.address == block.address
    assert texts(again)["events"].startswith("1 pending free completes")
    assert [c.verdict for c in again.candidates] == ["taken"]


def test_stepping_leaves_the_allocators_behaviour_unchanged() -> None:
    session, plain = Session("60MiB"), CachingAllocator("60MiB", record_history=True)
    blocks = [session.malloc(9 * MIB) for _ in range(6)]
    for block in blocks[::2]:
        session.free(block)
    for address in [plain.malloc(9 * MIB) for _ in range(6)][::2]:
        plain.free(address)
    assert session.gpu.snapshot() == plain.snapshot()
    assert session.gpu.memory_stats() == plain.memory_stats()


def test_the_failed_request_of_the_classic() -> None:
    walk = Walk(prepare(oom())[0])
    walk.go_to(15)
    found = walk_on(walk)
    assert found is not None
    entry, decision = found
    assert (entry, decision.address) == (15, None)
    assert decision.error is not None
    assert "33.00 MiB is reserved by PyTorch but unallocated" in decision.error
    assert [rule.name for rule in decision.rules][-4:] == [
        "cudaMalloc",
        "retry",
        "cudaMalloc",
        "out of memory",
    ]
    assert walk_on(walk) is None


def test_a_slice_of_a_real_recording_has_its_addresses() -> None:
    recording = load(RAGGED)
    trace, walk = recording.devices[0], Walk(prepare(recording)[0])
    walk.go_to(20_000)
    n_compared = 0
    for _ in range(150):
        found = walk_on(walk)
        assert found is not None
        entry, decision = found
        if trace.action[entry] == Action.ALLOC:
            assert decision.address == int(trace.addr[entry])
            n_compared += 1
    assert n_compared > 50


@pytest.mark.parametrize(
    "conf",
    [
        pytest.param("", marks=pytest.mark.slow),
        "expandable_segments:True",
        "max_split_size_mb:32",
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_rules_name_sections_of_the_allocator_page(kind: str, conf: str) -> None:
    theory = (ROOT / "docs" / "concepts" / "allocator.md").read_text()
    headings = re.findall(r"^## (.*)$", theory, re.MULTILINE)
    recording = KINDS[kind](conf=conf, **({} if kind == "oom" else {"entries": 200}))
    walk = Walk(prepare(recording)[0])
    while (found := walk_on(walk)) is not None:
        assert found[1].rules
        assert {rule.section for rule in found[1].rules} <= set(headings)


def test_step_refuses_a_missing_entry() -> None:
    with pytest.raises(RecordingError, match="entry 16: there is no such entry; expected 0 to 15"):
        Walk(prepare(oom())[0]).go_to(16)


def test_step_refuses_an_allocator_without_history() -> None:
    with pytest.raises(ValueError, match="record_history=True"):
        step(CachingAllocator("1GiB"), Request("malloc", 512))
