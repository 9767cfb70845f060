"""Address policy read from a recording, and its effect on what-ifs."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from allocsim import CachingAllocator, replay
from allocsim.core import AddressEventKind
from allocsim.recording import Action, Trace, load, read_snapshot
from allocsim.replaying import prepare
from allocsim.simulation.addresses import Addresses, read_addresses
from allocsim.units import GIB, MIB

Entries = Callable[..., Trace]

CARD = Path(__file__).parents[2] / "traces" / "h200"
PROGRAMS = CARD / "programs"
SETTINGS = ("expandable", "gc", "max-split", "roundup")
STATS = json.loads((PROGRAMS / "stats.json").read_text())
TOP = 0x7F00_0000_0000


def read(path: Path) -> Addresses:
    (trace,) = load(path).devices
    return read_addresses(trace, ())


def test_driver_policy_places_segments_of_recorded_cards() -> None:
    """Segments that are not reproduced come after memory that the host maps between chunks.

    That memory moves all later segments, and keeps their order.
    """
    found = {path.name: read(path) for path in sorted(CARD.rglob("*.npz.gz"))}
    assert len(found) == 56
    assert {each.policy for each in found.values()} == {"driver"}
    segments = sum(each.n_segments for each in found.values())
    assert segments > 7000
    assert sum(each.n_right for each in found.values()) >= 0.96 * segments
    shown = [each for each in found.values() if each.n_segments]
    assert all(each.n_right >= 0.8 * each.n_segments for each in shown)


@pytest.mark.parametrize("setting", SETTINGS)
@pytest.mark.parametrize(
    "program",
    ["gpt2_training", "greedy_decoding", "lora_finetuning", "resnet_training", "two_streams"],
)
def test_what_if_has_the_peak_measured_on_the_card(program: str, setting: str) -> None:
    """With ascending addresses, four of the twenty peaks differ by up to 2.5 %."""
    recording = load(PROGRAMS / f"{program}-default.npz.gz")
    (other,) = prepare(load(PROGRAMS / f"{program}-{setting}.npz.gz"))
    (run,) = replay(recording, other.recorded.conf).devices
    assert run.peak_reserved_bytes == STATS[f"{program}-{setting}"]["reserved_bytes.all.peak"]


def test_what_if_notes_address_policy_and_its_accuracy() -> None:
    (run,) = replay(load(PROGRAMS / "gpt2_training-default.npz.gz"), "max_split_size_mb:64").devices
    rule = "segments get addresses by the CUDA driver's rule, which reproduces 15"
    assert any(note.startswith(rule) for note in run.notes)


def test_peak_is_a_range_if_it_depends_on_addresses() -> None:
    """The peak depends on a large chunk of the context, which libraries may use or not.

    A recording with expandable segments does not show it.
    """
    name = "greedy_decoding-roundup"
    recording = load(PROGRAMS / "greedy_decoding-expandable.npz.gz")
    (run,) = replay(recording, "roundup_power2_divisions:4").devices
    low, high = run.peak_range
    assert low < high == STATS[name]["reserved_bytes.all.peak"]
    assert any("free blocks of equal size" in note for note in run.notes)


def test_no_range_as_recorded_or_with_requested_addresses() -> None:
    recording = load(PROGRAMS / "greedy_decoding-default.npz.gz")
    (own,) = replay(recording).devices
    (named,) = replay(recording, "roundup_power2_divisions:4", addresses="bump").devices
    assert own.peaks_left_open is None
    assert named.peaks_left_open is None


def test_no_range_for_releases_with_tie_break_by_age() -> None:
    recording = load(PROGRAMS / "greedy_decoding-expandable.npz.gz")
    (run,) = replay(recording, "roundup_power2_divisions:4", torch_version="2.15").devices
    assert run.peaks_left_open is None
    assert not any("segments get addresses" in note for note in run.notes)


# Reading a policy from segments


def steps(*sizes: int) -> Callable[[CachingAllocator], None]:
    """Return a program that requests sizes in MiB; -n frees block n and empties the cache."""

    def program(gpu: CachingAllocator) -> None:
        blocks: list[int | None] = []
        for size in sizes:
            if size > 0:
                blocks.append(gpu.malloc(size * MIB))
            else:
                gpu.free(blocks[-size])
                gpu.empty_cache()

    return program


def made(program: Callable[[CachingAllocator], None], policy: str) -> Trace:
    allocator = CachingAllocator(
        64 * GIB, address_policy=policy, base_address=TOP, record_history=True
    )
    program(allocator)
    return trace_of(allocator)


def trace_of(allocator: CachingAllocator) -> Trace:
    (trace,) = read_snapshot("a program", allocator.snapshot(), 1 << 20).devices
    return trace


MIXED = steps(20, 44, 30, -1, 20, 44, 150, 12, -3, 30, 200, 26)


@pytest.mark.parametrize("policy", ["bump", "firstfit", "driver"])
def test_policy_of_a_recording_is_found(policy: str) -> None:
    found = read_addresses(made(MIXED, policy), ())
    assert (found.policy, found.is_known) == (policy, True)
    assert found.n_right >= found.n_segments - 1


def segments(*moves: int | tuple[int, int]) -> list[tuple[Action, int, int]]:
    """Return segment entries: (MiB below the top, MiB) allocates, MiB below the top frees."""
    sizes = dict(move for move in moves if isinstance(move, tuple))
    rows = []
    for move in moves:
        below, size = move if isinstance(move, tuple) else (move, sizes[move])
        action = Action.SEGMENT_ALLOC if isinstance(move, tuple) else Action.SEGMENT_FREE
        rows.append((action, TOP - below * MIB, size * MIB))
    return rows


def events_of(found: Addresses) -> list[tuple[int, AddressEventKind, int, int]]:
    """Return the events with addresses in MiB below the top."""
    return [
        (
            each.entry,
            each.event.kind,
            (TOP - each.event.start) // MIB,
            (TOP - each.event.end) // MIB,
        )
        for each in found.events
    ]


def test_segment_inside_a_chunk_shows_a_hole_of_the_context(
    entries: Entries,
) -> None:
    trace = entries(*segments((544, 20), (24, 20), (576, 20), (608, 20)))
    found = read_addresses(trace, ())
    assert events_of(found) == [(1, AddressEventKind.HOLE, 24, 0)]
    assert found.base == TOP - 512 * MIB
    assert found.n_right == 4


def test_segments_across_32_mib_show_a_chunk_of_others(entries: Entries) -> None:
    trace = entries(*segments((544, 32), (256, 20), (236, 20), (216, 20), (576, 30), (608, 30)))
    assert events_of(read_addresses(trace, ())) == [(1, AddressEventKind.HOLE, 256, 192)]


def test_segments_around_it_show_memory_taken_in_a_chunk_of_others(
    entries: Entries,
) -> None:
    """A segment 64 MiB above the known end of the chunk belongs to the chunk too."""
    filled = [(512, 20), (492, 20), (472, 20), (452, 20), (432, 20), (412, 28)]
    trace = entries(*segments((544, 32), *filled, (320, 32), (288, 24), (264, 30), (576, 32)))
    found = read_addresses(trace, ())
    assert events_of(found) == [
        (1, AddressEventKind.HOLE, 512, 224),
        (7, AddressEventKind.TAKEN, 384, 320),
    ]
    assert found.n_right == found.n_segments


def test_chunks_filling_downwards_show_a_gap(entries: Entries) -> None:
    trace = entries(*segments((544, 20), (64, 30), (96, 30), (128, 30), (576, 30)))
    assert events_of(read_addresses(trace, ())) == [(1, AddressEventKind.GAP, 128, 32)]


def test_unused_hole_shows_memory_taken_by_others(entries: Entries) -> None:
    trace = entries(*segments((32, 20), (8, 2), (64, 30), (96, 30)))
    assert events_of(read_addresses(trace, ())) == [(1, AddressEventKind.TAKEN, 12, 8)]


def test_chunk_of_others_is_taken_before_pending_frees(entries: Entries) -> None:
    """The first 26 MiB of the chunk would fit in the freed segment, so they were taken before."""
    trace = entries(*segments((64, 64), (96, 20), (160, 64), 64, (166, 6), (64, 64), (224, 30)))
    found = read_addresses(trace, ())
    assert events_of(found) == [(3, AddressEventKind.TAKEN, 192, 166)]


def test_memory_taken_by_others_may_become_free(entries: Entries) -> None:
    trace = entries(*segments((32, 20), (8, 2), (64, 30), (12, 4), (96, 30)))
    found = read_addresses(trace, ())
    assert found.policy == "driver"


def test_one_segment_gives_policy_bump_without_alternatives(entries: Entries) -> None:
    found = read_addresses(entries(*segments((32, 20))), ())
    assert (found.policy, found.is_known) == ("bump", True)
    assert list(found.others()) == []


def test_unknown_policy_gives_bump_with_alternatives(
    entries: Entries,
) -> None:
    trace = entries(*segments((6, 2), (506, 20), (106, 20), (306, 20), (206, 20), (406, 20)))
    found = read_addresses(trace, ())
    assert (found.policy, found.is_known) == ("bump", False)
    assert [other.policy for other in found.others()] == ["firstfit", "driver"]


def test_overlapping_segments_are_accepted(entries: Entries) -> None:
    trace = entries(*segments((64, 40), (44, 40), (64, 20), 64, 44, 64, (32, 20), (60, 8)))
    assert read_addresses(trace, ()).n_segments == 5


def test_initial_segments_occupy_their_addresses() -> None:
    """The driver policy places later segments around the segments from before the recording."""
    allocator = CachingAllocator(
        64 * GIB, address_policy="driver", base_address=TOP, record_history=True
    )
    steps(20, 44, 30, 60, 100)(allocator)
    before = trace_of(allocator).segments
    allocator.take_history()
    steps(12, 26, 150)(allocator)
    trace = replace(trace_of(allocator), segments=())
    found = read_addresses(trace, before)
    assert (found.policy, found.base) == ("driver", None)
    assert found.n_right == found.n_segments > 1


def test_recording_of_a_phantom_with_ascending_addresses_shows_that_policy() -> None:
    path = Path(__file__).parents[2] / "traces" / "recordings"
    (prepared,) = prepare(load(path / "greedy_decoding-default-torch2.6.npz.gz"))
    assert prepared.addresses.policy == Addresses().policy
    assert prepared.addresses.n_right == prepared.addresses.n_segments == 24
    assert prepared.addresses.is_known
