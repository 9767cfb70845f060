"""Answers of `fit`: the verdict, the margin, the memory needed, and recommendations."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allocsim import CachingAllocator, load
from allocsim.analysis.top import top
from allocsim.errors import ConfigError, UnavailableError
from allocsim.fitting import Fit, Ran, Task, fewest, fit_command, largest, model_of, run_program
from allocsim.fitting import fit as fit_by_any_engine
from allocsim.phantom import Gpu, context_range, find_gpu
from allocsim.units import GIB, MIB, TIB
from tests.fitting.conftest import Pretended

Pretend = Callable[..., Pretended]


def fit(*question: Any, **options: Any) -> Fit:
    """Return an answer by a run or a law."""
    found = fit_by_any_engine(*question, **options)
    assert isinstance(found, Fit)
    return found


CARD = Gpu("a small card", 4 * GIB, multiprocessors=20, context_memory=512 * MIB)


def batch_of(program: str) -> int:
    found = re.search(r"\((\d+), \d+\), device", program)
    return int(found[1]) if found else 1


def weights_and_batch(allocator: CachingAllocator, text: str) -> int:
    """Allocate a model that needs twice its memory at first, and then 100 MiB per unit of batch."""
    batch = batch_of(text)
    made = [allocator.malloc(512 * MIB) for _ in range(2)]
    allocator.free(made.pop())
    allocator.empty_cache()
    allocator.reset_peak_memory_stats()
    entries = len(allocator.snapshot()["device_traces"][0])
    kept = [allocator.malloc(100 * MIB) for _ in range(batch)]
    for each in kept:
        allocator.free(each)
    return entries


def task(batch: int = 1) -> Task:
    return Task(model=model_of("gpt2"), batch=batch)


def test_fit_gives_the_margin_of_a_task_that_fits(pretend: Pretend) -> None:
    pretend(weights_and_batch)
    found = fit(task(8), CARD)
    assert found.fits
    assert found.ran.peak_allocated_bytes == found.ran.peak_reserved_bytes == 1312 * MIB
    assert found.room_bytes == 3584 * MIB
    assert found.spare_bytes == (3584 - 1312) * MIB
    assert found.headline() == "fits a small card with 2.22 GiB to spare"
    low, high = found.process_bytes
    assert 1312 * MIB < low < high


def test_fit_ignores_memory_before_the_peaks_were_reset(pretend: Pretend) -> None:
    pretend(weights_and_batch)
    assert fit(task(1), CARD).ran.peak_reserved_bytes == 612 * MIB
    pretend(lambda allocator, text: 0 * weights_and_batch(allocator, text))
    assert fit(task(1), CARD).ran.peak_reserved_bytes == 1024 * MIB


def test_fit_gives_the_needed_memory_of_a_task_that_does_not_fit(pretend: Pretend) -> None:
    ran = pretend(weights_and_batch)
    found = fit(task(40), CARD)
    assert not found.fits
    assert found.needed_bytes == 4512 * MIB
    assert found.spare_bytes == (3584 - 4512) * MIB
    assert found.ran.oom is not None
    assert "4.41 GiB are needed, 928.00 MiB more than it has" in found.headline()
    assert ran.memories == [TIB], "one run tells both, as the program asks alike on any card"


def text_of(ran: Ran) -> str:
    """Return the text of the error that ended a run; its entry is in the run's own recording."""
    return "" if ran.oom is None else ran.oom.message


def test_unlimited_run_replayed_on_the_card_equals_a_run_there(pretend: Pretend) -> None:
    def play(allocator: CachingAllocator, text: str) -> int:
        """Free the reserved memory in sizes that cannot be reused, so that the cache is emptied."""
        entries = weights_and_batch(allocator, text)
        for megabytes in range(100, 1400, 100):
            allocator.free(allocator.malloc(megabytes * MIB))
        return entries

    pretend(play)
    for batch, ends in ((1, True), (8, True), (33, False)):
        answer = fit(task(batch), CARD)
        there = run_program(task(batch), CARD)
        assert answer.completes is ends is not there.is_out_of_memory
        assert answer.ran.peak_reserved_bytes == there.peak_reserved_bytes
        assert answer.ran.peak_allocated_bytes == there.peak_allocated_bytes
        assert text_of(answer.ran) == text_of(there)
        retries = answer.ran.device_run.stats["num_alloc_retries"]
        assert retries == there.device_run.stats["num_alloc_retries"] > 0
        assert answer.ran.device_run.device_memory == there.device_run.device_memory


@pytest.mark.parametrize("change", ["compiled", "of images", "kept"])
def test_program_that_may_depend_on_the_card_is_run_on_it(
    pretend: Pretend, change: str, tmp_path: Path
) -> None:
    ran = pretend(weights_and_batch)
    asked = task(40)
    if change == "compiled":
        asked = replace(asked, compiles=True)
    elif change == "of images":
        asked = replace(asked, model=model_of("ViT-B/16"))
    fit(asked, CARD, keep=tmp_path / "kept.pickle" if change == "kept" else None)
    assert ran.memories == [CARD.memory] + [TIB] * (change != "of images"), "that one fits"
    assert len(set(ran.programs)) == 1, "the same program, without the limit"


def fragmented(allocator: CachingAllocator, _: str) -> int:
    """Free every other of 340 blocks, two to a segment, and then request larger blocks."""
    blocks = [allocator.malloc(9 * MIB) for _ in range(340)]
    for block in blocks[::2]:
        allocator.free(block)
    for _each in range(10):
        allocator.malloc(120 * MIB)
    return 0


def test_fit_names_a_setting_under_which_the_task_fits(pretend: Pretend) -> None:
    pretend(fragmented)
    found = fit(task(), CARD)
    assert not found.fits
    assert found.recommendation is not None
    assert found.recommendation.best is not None
    assert fit(task(), CARD, conf=found.recommendation.best.setting.conf).fits


def test_fit_command_answers_for_a_users_program(pretend: Pretend) -> None:
    ran = pretend(weights_and_batch)
    found = fit_command(["python", "train.py"], CARD)
    assert found.fits
    assert found.task is None
    assert (found.program, ran.programs) == ("python train.py", ["python train.py"])


def waiting(allocator: CachingAllocator, work: str, count: int = 8) -> None:
    """Allocate blocks of 100 MiB that wait for another stream, unless the card keeps up.

    work: time at which the card finishes its work: "when-waited" or "at-once".
    """
    for _ in range(count):
        block = allocator.malloc(100 * MIB, stream=7)
        assert block is not None
        allocator.record_stream(block, 0)
        allocator.free(block)
        if work == "at-once":
            allocator.synchronize()


def test_card_that_keeps_up_reserves_less_if_freed_blocks_wait(pretend: Pretend) -> None:
    """FSDP gathers layers in this way on a separate stream, without a limit on their number."""

    def gathered(allocator: CachingAllocator, _text: str) -> int:
        waiting(allocator, ran.works[-1])
        return 0

    ran = pretend(gathered)
    found = fit_command(["python", "train.py"], CARD)
    assert ran.works == ["when-waited", "at-once"]
    assert found.ran.peak_reserved_bytes == 800 * MIB
    assert found.keeping_up is not None
    assert found.keeping_up.peak_reserved_bytes == 100 * MIB
    assert any("keeps up with the program 100.00 MiB are reserved" in note for note in found.notes)
    assert found.needed_bytes == 800 * MIB


@pytest.mark.parametrize("is_reset", [True, False])
def test_waiting_blocks_are_found_after_a_higher_peak(pretend: Pretend, is_reset: bool) -> None:
    """The higher peak is that of the weights that a program loads before it trains."""

    def loaded(allocator: CachingAllocator, _text: str) -> int:
        weights = allocator.malloc(1500 * MIB)
        allocator.free(weights)
        allocator.empty_cache()
        reset = len(allocator.history)
        allocator.reset_peak_memory_stats()
        waiting(allocator, ran.works[-1])
        return reset if is_reset else 0

    ran = pretend(loaded)
    found = fit_command(["python", "train.py"], CARD)
    assert found.keeping_up is not None
    if is_reset:
        assert found.ran.peak_reserved_bytes == 800 * MIB
        assert found.keeping_up.peak_reserved_bytes == 100 * MIB


def test_waiting_blocks_that_change_no_peak_give_no_note(pretend: Pretend) -> None:
    def little(allocator: CachingAllocator, _text: str) -> int:
        waiting(allocator, ran.works[-1], count=1)
        weights_and_batch(allocator, _text)
        return 0

    ran = pretend(little)
    found = fit_command(["python", "train.py"], CARD)
    assert ran.works == ["when-waited", "at-once"]
    assert not any("freed blocks wait" in note for note in found.notes)


def test_fit_answers_although_its_second_run_fails(pretend: Pretend) -> None:
    """For example, the program may refuse to write its files twice."""

    def once(allocator: CachingAllocator, _text: str) -> int:
        waiting(allocator, ran.works[-1])
        ran.error = "FileExistsError: out"
        return 0

    ran = pretend(once)
    found = fit_command(["python", "train.py"], CARD)
    assert found.keeping_up is None
    assert found.needed_bytes == 800 * MIB
    (note,) = [note for note in found.notes if "keeps up" in note]
    assert note.startswith("the peak on a card that keeps up with the program is unknown: ")
    assert "FileExistsError" in note


def test_verdict_is_open_if_only_waiting_blocks_do_not_fit(pretend: Pretend) -> None:
    def beside(allocator: CachingAllocator, _text: str) -> int:
        kept = allocator.malloc(CARD.room - 250 * MIB)
        waiting(allocator, ran.works[-1])
        if ran.works[-1] == "when-waited":
            allocator.malloc(CARD.room)
        allocator.free(kept)
        return 0

    ran = pretend(beside)
    found = fit_command(["python", "train.py"], CARD)
    assert not found.fits
    assert any("on a card that keeps up with the program it fits" in each for each in found.notes)


def test_program_of_one_stream_is_run_once(pretend: Pretend) -> None:
    ran = pretend(weights_and_batch)
    assert fit_command(["python", "train.py"], CARD).keeping_up is None
    assert ran.works == ["when-waited"]


def test_note_on_values_read_back_is_for_users_code_only(pretend: Pretend) -> None:
    pretend(weights_and_batch)
    (note,) = fit_command(["python", "train.py"], CARD).notes
    assert note.startswith("the program reads values back at train.py:31 (3 times); they are zero")
    assert fit(task(), CARD).notes == ()


def test_notes_name_what_a_phantom_does_not_know(pretend: Pretend) -> None:
    pretend(weights_and_batch)
    (cudnn,) = fit(Task(model=model_of("resnet50")), CARD).notes
    assert cudnn.startswith("convolutions: cuDNN's workspaces")
    (experts,) = fit(Task(model=model_of("Mixtral-8x7B")), CARD).notes
    assert experts.startswith("experts: which ones tokens choose is unknown here")
    checkpointed = Task(model=model_of("gpt2"), checkpointing=True)
    assert not fit(checkpointed, CARD).notes
    (mask,) = fit(checkpointed, CARD, values=False).notes
    assert mask.startswith("attention: with checkpointing transformers reads the positions")


def test_verdict_is_open_if_only_a_small_context_leaves_room(pretend: Pretend) -> None:
    pretend(weights_and_batch)
    close = fit(task(30), CARD)
    assert close.completes
    assert close.fits is None
    low, high = close.process_bytes
    assert low <= CARD.memory < high
    assert close.headline().startswith("may not fit a small card: 3.54 GiB to 4.06")


def test_verdict_is_open_if_a_slightly_larger_card_suffices() -> None:
    question = Task(model=model_of("gpt2"), batch=2)
    needed = fit(question, "A100 40GB", engine="laws").needed_bytes
    assert needed is not None
    low, high = context_range(find_gpu("A100 40GB"))
    for more, fits in ((high, True), (low, None), (-low, False)):
        card = replace(find_gpu("A100 40GB"), memory=needed + more)
        assert fit(question, card, engine="laws").fits is fits


def test_fit_refuses_a_program_that_fails(pretend: Pretend) -> None:
    error = 'Traceback (most recent call last):\n  File "x"\nValueError: no such rope\n'
    pretend(weights_and_batch, error=error)
    with pytest.raises(ConfigError, match="ended without using the GPU, with ValueError: no such"):
        fit(task(), CARD)
    advice = "\nSet TORCHDYNAMO_VERBOSE=1 for the full Dynamo stack trace\n"
    missing = "torch._inductor.exc.TritonMissing: Cannot find a working triton installation."
    pretend(weights_and_batch, error=f"Traceback\n{missing}\n{advice}")
    with pytest.raises(ConfigError, match="with TritonMissing: Cannot find a working triton inst"):
        fit(task(), CARD)
    pretend(weights_and_batch, error="Killed")
    with pytest.raises(ConfigError, match="with exit code 1: Killed"):
        fit(task(), CARD)


def test_note_names_a_release_other_than_the_requested_one(pretend: Pretend) -> None:
    pretend(weights_and_batch)
    notes = fit(task(), CARD, torch_version="2.11").notes
    assert "PyTorch 2.11 is not installed: this is 2.15.0" in notes
    assert any("2.11 keeps a cuBLAS workspace for each handle and stream" in each for each in notes)
    assert not any(
        "not installed" in each for each in fit(task(), CARD, torch_version="2.15").notes
    )
    with pytest.raises(ConfigError, match=r"torch_version '1\.9' is not modelled"):
        fit(task(), CARD, torch_version="1.9")


def test_fit_without_pytorch_names_every_interpreter(pretend: Pretend) -> None:
    pretend(weights_and_batch)
    with pytest.raises(UnavailableError, match=r"has no PyTorch.*pip install 'allocsim\[fit\]'"):
        fit(task(), CARD, python="/usr/bin/perl")


def test_fit_keeps_the_recording_in_the_given_file(pretend: Pretend, tmp_path: Path) -> None:
    pretend(weights_and_batch)
    keep = tmp_path / "kept.pickle"
    found = fit(task(), CARD, keep=keep)
    assert len(load(keep).devices[0]) == len(found.ran.prepared.trace)


def test_largest_batch_and_the_next_have_run(pretend: Pretend) -> None:
    ran = pretend(weights_and_batch)
    found = largest(task(), "batch", CARD)
    assert found.value == 30, "512 MiB and 30 times 100 are in 3.5 GiB, 31 times are not"
    assert found.fitting is not None
    assert not found.fitting.is_out_of_memory
    assert found.failing is not None
    assert found.failing.is_out_of_memory
    assert {each.value: each.fits for each in found.tried if each.is_limited} == {
        30: True,
        31: False,
    }
    assert len(ran.programs) == 4


def test_largest_finds_a_batch_whose_memory_grows_in_leaps(pretend: Pretend) -> None:
    def leaps(allocator: CachingAllocator, text: str) -> int:
        batch = batch_of(text)
        allocator.malloc((100 + 7 * batch + (2000 if batch > 37 else 0)) * MIB)
        return 0

    pretend(leaps)
    found = largest(task(), "batch", Gpu("a card", 2 * GIB))
    assert found.value == 37
    assert len(found.tried) < 20


def test_largest_tries_only_multiples_of_the_step(pretend: Pretend) -> None:
    pretend(weights_and_batch)
    found = largest(task(), "batch", CARD, step=8)
    assert found.value == 24
    assert {each.value % 8 for each in found.tried} == {0}


def test_largest_sequence_ends_with_the_models_positions(pretend: Pretend) -> None:
    pretend(weights_and_batch)
    found = largest(task(), "seq", CARD)
    assert (found.value, found.failing) == (1024, None)


def test_largest_is_0_if_not_even_one_fits(pretend: Pretend) -> None:
    pretend(weights_and_batch)
    found = largest(task(), "batch", Gpu("a tiny card", 600 * MIB))
    assert (found.value, found.fitting) == (0, None)


def test_largest_refuses_a_size_that_does_not_change_memory(pretend: Pretend) -> None:
    pretend(lambda allocator, _: 0 * (allocator.malloc(MIB) or 0))
    with pytest.raises(ConfigError, match="batch makes no difference to the memory"):
        largest(task(), "batch", CARD)


def test_fewest_finds_the_fewest_gpus_that_share_a_model(pretend: Pretend) -> None:
    def shared(allocator: CachingAllocator, text: str) -> int:
        found = re.search(r"world_size=(\d+)", text)
        assert found is not None
        allocator.malloc(20 * GIB // int(found[1]))
        return 0

    pretend(shared)
    sharded = Task(model=model_of("gpt2"), parallel="fsdp")
    found = fewest(sharded, CARD)
    assert found.ranks == 8, "20 GiB are 2.5 GiB each, and a card has 3.5"
    assert [(each.value, each.fits) for each in found.tried] == [
        (2, False),
        (4, False),
        (8, True),
        (16, True),
    ]
    assert fewest(sharded, Gpu("a tiny card", 10 * MIB)).ranks is None


def test_failure_is_distinct_from_the_peak_before_it(pretend: Pretend) -> None:
    def play(allocator: CachingAllocator, _text: str) -> int:
        allocator.free(allocator.malloc(1500 * MIB))
        allocator.empty_cache()
        for size in (600, 400, 900):
            allocator.malloc(size * MIB)
        return 0

    pretend(play)
    found = fit(task(), Gpu("a card", 1500 * MIB))
    assert found.failure is not None
    assert found.failure.tried_bytes == 900 * MIB
    assert found.failure.allocated_bytes == found.failure.reserved_bytes == 1000 * MIB
    assert found.ran.peak_allocated_bytes == found.ran.peak_reserved_bytes == 1500 * MIB
    assert found.failure.entry > found.ran.busiest
    assert found.needed_bytes == 1900 * MIB


def test_needed_bytes_are_of_the_smallest_card_that_works(
    pretend: Pretend,
) -> None:
    """An unlimited card never empties the cache, so it reserves more than the program needs."""

    def in_turns(allocator: CachingAllocator, _text: str) -> int:
        for size in (1000, 1200, 1400, 1600):
            allocator.free(allocator.malloc(size * MIB))
        return 0

    pretend(in_turns)
    card = Gpu("a card", 1500 * MIB, multiprocessors=40, context_memory=100 * MIB)
    found = fit(task(), card)
    assert not found.fits
    assert found.unlimited is not None
    assert found.unlimited.peak_reserved_bytes == 5200 * MIB
    assert found.needed_bytes == 1600 * MIB
    assert "1.56 GiB are needed, 200.00 MiB more than it has" in found.headline()
    assert fit(task(), replace(card, memory=1700 * MIB)).completes
    assert not fit(task(), replace(card, memory=1698 * MIB)).completes
    # Where 687 MiB of context leave room for every request, the peak may be whatever is left.
    fitting = fit(task(), replace(card, memory=2300 * MIB))
    assert fitting.fits is True
    assert fitting.process_bytes[1] <= 2300 * MIB


@pytest.mark.parametrize(
    ("name", "asked", "memory"),
    [
        ("Llama-3-8B", {"batch": 4, "seq": 4096, "checkpointing": True}, 82 * GIB),
        ("SmolLM2-135M", {"batch": 2, "seq": 1024}, 3300 * MIB),
    ],
)
def test_card_with_the_needed_bytes_works_and_a_smaller_one_does_not(
    name: str, asked: dict[str, Any], memory: int
) -> None:
    question = Task(model=model_of(name), **asked)
    found = fit(question, Gpu("a card", memory), engine="laws")
    assert found.needed_bytes is not None
    assert found.unlimited is not None
    assert memory < found.needed_bytes < found.unlimited.peak_reserved_bytes
    assert fit(question, Gpu("a card", found.needed_bytes), engine="laws").fits
    assert not fit(question, Gpu("a card", found.needed_bytes - 2 * MIB), engine="laws").fits


def test_failure_equals_that_of_the_kept_recording(tmp_path: Path) -> None:
    """`top` gives the same moment for the file's error as the answer does."""
    out = tmp_path / "kept.pickle"
    question = Task(model=model_of("SmolLM2-135M"), batch=2)
    found = fit(question, Gpu("a card", 3300 * MIB), engine="laws", keep=out)
    held = top(load(out), "oom")
    assert found.failure is not None
    assert found.failure.entry == held.at.entry
    assert found.failure.allocated_bytes == held.allocated_bytes
    assert (held.at.step, held.at.phase) == (2, "forward")
    again = fit(question, Gpu("a card", 3300 * MIB), engine="laws")
    assert again.failure is not None
    assert again.failure.allocated_bytes == held.allocated_bytes
    assert again.failure.reserved_bytes == found.failure.reserved_bytes


def pretend_experts(pretend: Pretend) -> Pretended:
    """Play two experts that process 600 MiB of tokens one after the other."""

    def play(allocator: CachingAllocator, _: str) -> int:
        for size in (600,) if ran.routings[-1] == "skewed" else (300, 300):
            allocator.free(allocator.malloc(size * MIB))
        return 0

    ran: Pretended = pretend(play)
    ran.is_routed = True
    return ran


def test_fit_gives_a_range_over_the_choice_of_experts(pretend: Pretend) -> None:
    ran = pretend_experts(pretend)
    found = fit(task(), CARD)
    assert ran.routings == ["balanced", "skewed"]
    assert found.ran.peak_reserved_bytes == 300 * MIB
    assert found.skewed is not None
    assert found.skewed.peak_reserved_bytes == 600 * MIB
    (note,) = (note for note in found.notes if note.startswith("experts"))
    assert "300.00 MiB to 600.00 MiB are reserved" in note
    ran.is_routed = False
    found = fit(task(), CARD)
    assert found.skewed is None
    assert not [note for note in found.notes if note.startswith("experts")]


def test_verdict_is_open_if_experts_chosen_by_all_tokens_do_not_fit(pretend: Pretend) -> None:
    pretend_experts(pretend)
    found = fit(task(), replace(CARD, memory=1024 * MIB))
    assert found.completes
    assert found.fits is None
    (note,) = (note for note in found.notes if note.startswith("experts"))
    assert note.endswith("if all choose the same ones, the program does not fit")
