"""Explanations of three errors that users reported, with their figures.

- vllm-project/vllm PR 41268: weights of 530 and 270 MiB; 270 land in a cached 530 MiB block.
- pytorch/pytorch#35901: 10.84 GiB refused, 1.06 GiB allocated, 12.53 GiB reserved, 10.26 free.
- pytorch/pytorch#189504: a block that fits is pending on another stream; repeating succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from allocsim import CachingAllocator, OutOfMemoryError
from allocsim.analysis.explain import DeviceExplanation, explain_recording
from allocsim.analysis.explain.shortage import findings_of
from allocsim.analysis.explain.state_at_error import blockers_of, kinds_of
from allocsim.recording import Recording
from allocsim.state import ALLOCATED
from allocsim.units import MIB, format_size

Failed = Callable[..., Any]
Recorded = Callable[..., Recording]


def sizes(kinds: dict[str, int]) -> dict[str, int]:
    """Return the kinds that have bytes, in MiB."""
    return {kind: size // MIB for kind, size in kinds.items() if size}


def explained(recording: Recording, **options: Any) -> DeviceExplanation:
    _, (device,) = explain_recording(recording, **options)
    return device


def load_weights(gpu: CachingAllocator) -> None:
    """Load and drop a shard of 530 MiB, keep one of 270, then request 530 again."""
    gpu.free(gpu.malloc(530 * MIB))
    gpu.malloc(270 * MIB)
    gpu.malloc(530 * MIB)


def test_vllm_a_small_load_in_a_large_cached_block(failed: Failed) -> None:
    moment = failed(load_weights, "800MiB").moment
    assert sizes(kinds_of(moment)) == {"live": 270, "interleaved": 260, "free": 270}
    assert moment.largest_request_bytes == 270 * MIB
    found = blockers_of(moment)
    assert found is not None
    assert [block.size // MIB for block in found.blocks] == [270]
    assert found.freed_bytes == 530 * MIB


def test_split_limit_avoids_the_vllm_error(recorded: Recorded) -> None:
    device = explained(recorded(load_weights, "800MiB"))
    (shortage,) = device.shortages
    assert shortage.cause == "fragmentation_likely"
    settings = [remedy.conf for remedy in device.remedies if remedy.kind == "conf"]
    assert "max_split_size_mb:64" in settings
    assert "expandable_segments:True" in settings
    assert "roundup_power2_divisions:2" not in settings
    sizes_needed = {r.conf: r for r in device.remedies if r.kind == "device_memory"}
    # 530 MiB are cached and 530 more are needed; the recorded 800 MiB did not suffice.
    assert sizes_needed[""].device_memory == 1060 * MIB
    assert sizes_needed[""].smaller_fails_at is not None


def test_split_limit_that_vllm_uses_avoids_the_error(recorded: Recorded) -> None:
    recording = recorded(load_weights, "800MiB")
    device = explained(recording, conf="max_split_size_mb:20")
    assert device.shortages == ()
    assert device.device_run.peak_reserved_bytes == 800 * MIB


def split_activation(gpu: CachingAllocator) -> None:
    """Run the sequence assumed for #35901.

    952 MiB of weights have separate segments.  An activation of 11,878 MiB (the 11.6 GB segment in
    the report) is allocated and freed.  Later blocks are split from its cached block, and 133 MiB
    of them stay, 700 MiB from its start.  Then 11,100 MiB are requested.
    """
    gpu.malloc(952 * MIB)
    gpu.free(gpu.malloc(11_878 * MIB))
    passing = gpu.malloc(700 * MIB)
    gpu.malloc(133 * MIB)
    gpu.free(passing)
    gpu.malloc(11_100 * MIB)


def test_35901_has_the_poster_s_figures(failed: Failed) -> None:
    failure = failed(split_activation, "24217MiB", context_memory="881MiB")
    moment = failure.moment
    assert format_size(moment.tried_bytes) == "10.84 GiB"
    blocks = [block for segment in moment.segments for block in segment.blocks]
    allocated = sum(block.size for block in blocks if block.state == ALLOCATED)
    assert format_size(allocated) == "1.06 GiB"
    assert format_size(sum(each.total_size for each in moment.segments)) == "12.53 GiB"
    assert format_size(moment.free_bytes) == "10.26 GiB"


def test_35901_one_block_of_133_mib_keeps_eleven_gigabytes_reserved(failed: Failed) -> None:
    moment = failed(split_activation, "24217MiB", context_memory="881MiB").moment
    assert sizes(kinds_of(moment)) == {
        "live": 952 + 133,
        "interleaved": 700 + 11_045,
        "free": 10_506,
        "context": 881,
    }
    assert moment.largest_request_bytes == 11_045 * MIB
    found = blockers_of(moment)
    assert found is not None
    assert (found.cost_bytes, found.freed_bytes) == (133 * MIB, 11_878 * MIB)


def test_35901_is_fragmentation_that_expandable_segments_avoid(recorded: Recorded) -> None:
    recording = recorded(split_activation, "24217MiB", context_memory="881MiB")
    device = explained(recording)
    assert [shortage.cause for shortage in device.shortages] == ["fragmentation"]
    assert "expandable_segments:True" in [each.conf for each in device.remedies]


SIDE = 4096


def late_block(gpu: CachingAllocator) -> None:
    """Keep 10 MiB of a 100 MiB segment in use; the 60 behind them wait for another stream.

    A small request comes in between, since a free that completes in the next entry looks in a
    recording like a free that did not wait.
    """
    gpu.free(gpu.malloc(100 * MIB))
    gpu.malloc(10 * MIB)
    used_aside = gpu.malloc(60 * MIB)
    assert used_aside is not None
    gpu.record_stream(used_aside, SIDE)
    gpu.free(used_aside)
    gpu.malloc(MIB)
    gpu.malloc(80 * MIB)


def test_189504_block_becomes_free_after_the_failed_request(failed: Failed) -> None:
    failure = failed(late_block, "122MiB")
    moment = failure.moment
    # The 60 MiB have merged with the 30 behind them while the request waited.
    assert sizes(kinds_of(moment)) == {"live": 11, "late": 90, "other_size_pool": 1, "free": 20}
    assert findings_of(moment).late_bytes == 90 * MIB
    assert moment.largest_request_bytes == 90 * MIB
    assert blockers_of(moment) is None


def test_189504_repeated_request_succeeds(failed: Failed) -> None:
    assert failed(late_block, "122MiB").allocator.malloc(80 * MIB) is not None


def test_189504_is_pending_free_from_a_recording(recorded: Recorded) -> None:
    device = explained(recorded(late_block, "122MiB"))
    (shortage,) = device.shortages
    assert shortage.cause == "pending_free"
    assert shortage.oom.is_recorded
    assert "Repeat the request" in device.advice[0][0]


def test_idle_memory_of_a_private_pool_is_the_cause(failed: Failed, recorded: Recorded) -> None:
    def capture(gpu: CachingAllocator) -> None:
        gpu.begin_allocate_to_pool(1)
        kept = gpu.malloc(60 * MIB)
        gpu.end_allocate_to_pool(1)
        gpu.free(kept)
        gpu.malloc(50 * MIB)

    moment = failed(capture, "100MiB").moment
    assert sizes(kinds_of(moment)) == {"private_pool": 60, "free": 40}
    assert findings_of(moment).holds_in_private_pool
    device = explained(recorded(capture, "100MiB"))
    assert [shortage.cause for shortage in device.shortages] == ["private_pool"]


def test_failed_request_under_a_memory_fraction_has_the_limit(failed: Failed) -> None:
    def limited(gpu: CachingAllocator) -> None:
        gpu.set_per_process_memory_fraction(0.5)
        gpu.malloc(60 * MIB)

    moment = failed(limited, "100MiB").moment
    assert moment.limit_bytes == 50 * MIB
    assert moment.largest_request_bytes == 50 * MIB
    assert isinstance(failed(limited, "100MiB").error, OutOfMemoryError)


def test_a_fraction_set_while_the_program_ran_is_not_in_the_recording(recorded: Recorded) -> None:
    def limited(gpu: CachingAllocator) -> None:
        gpu.malloc(30 * MIB)
        gpu.set_per_process_memory_fraction(0.5)
        gpu.malloc(60 * MIB)

    device = explained(recorded(limited, "100MiB"))
    (shortage,) = device.shortages
    assert (shortage.cause, bool(shortage.oom.message)) == ("free_above_request", True)
    assert "memory fraction set while the program ran" in device.advice[0][0]
    assert device.remedies == ()


def test_explain_names_the_fraction_and_finds_the_smallest_that_suffices(
    recorded: Recorded,
) -> None:
    conf = "per_process_memory_fraction:0.5"

    def limited(gpu: CachingAllocator) -> None:
        gpu.malloc(30 * MIB)
        gpu.malloc(60 * MIB)

    device = explained(recorded(limited, "100MiB", conf))
    (shortage,) = device.shortages
    assert shortage.cause == "fraction_limit"
    fractions = [remedy.conf for remedy in device.remedies if remedy.kind == "memory_fraction"]
    assert fractions == ["per_process_memory_fraction:0.90"]
