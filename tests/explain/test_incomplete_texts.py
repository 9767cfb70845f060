"""Tests of texts that are cut off, of the host's memory and of several ranks."""

from __future__ import annotations

import pytest

from allocsim import explain
from allocsim.analysis.explain import Verdict
from allocsim.report import explain_message

SIZES = (
    "CUDA out of memory. Tried to allocate 2.00 GiB. GPU {gpu} has a total capacity of 79.15 GiB "
    "of which 1.20 GiB is free. Including non-PyTorch memory, this process has 77.90 GiB memory "
    "in use. Of the allocated memory {allocated} is allocated by PyTorch, and {idle} is reserved "
    "by PyTorch but unallocated."
)
FRAGMENTED = SIZES.format(gpu=1, allocated="65.00 GiB", idle="12.00 GiB")
FULL = SIZES.format(gpu=0, allocated="76.00 GiB", idle="500.00 MiB")
OLD = (
    "CUDA out of memory. Tried to allocate 2.87 GiB (GPU 0; 14.76 GiB total capacity; 8.77 GiB "
    "already allocated; 19.75 MiB free; 13.71 GiB reserved in total by PyTorch)"
)
HOST = (
    "RuntimeError: [enforce fail at alloc_cpu.cpp:75] err == 0. DefaultCPUAllocator: can't "
    "allocate memory: you tried to allocate 40000000000 bytes. Error code 12 (Cannot allocate "
    "memory)"
)


def one(text: str) -> Verdict:
    (verdict,) = explain(text)
    return verdict


def screen(text: str) -> str:
    return " ".join(str(explain_message.screen(explain(text))).split())


@pytest.mark.parametrize(
    ("whole", "ending"),
    [
        (FRAGMENTED, "12.00 GiB is rese"),
        (FRAGMENTED, "Of the allocated memory"),
        (OLD, "13.71 GiB reser"),
        (OLD, "13.71"),
    ],
)
def test_a_text_that_ends_before_the_idle_memory_is_undecided(whole: str, ending: str) -> None:
    assert one(whole).cause == "fragmentation"
    verdict = one(whole[: whole.index(ending) + len(ending) - 3])
    assert verdict.cause == "no_figures"
    assert "paste the rest" in verdict.advice[0]


def test_a_text_that_is_cut_off_bounds_the_idle_memory() -> None:
    verdict = one(FRAGMENTED[: FRAGMENTED.index("reserved")])
    assert "At most 12.90 GiB are idle" in verdict.advice[0]


def test_a_text_that_is_cut_off_is_full_if_its_bound_is_less_than_the_request() -> None:
    text = SIZES.format(gpu=0, allocated="77.50 GiB", idle="200.00 MiB")
    assert one(text[: text.index(", and ")]).cause == "full"


def test_a_text_of_the_asynchronous_backend_that_prints_no_idle_memory_is_decided() -> None:
    text = (
        "Allocation on device 0 would exceed allowed memory. (out of memory) Currently allocated : "
        "21.55 GiB Requested : 952.00 MiB Device limit : 24.00 GiB Free (according to CUDA): "
        "0 bytes PyTorch limit (set by user-supplied memory fraction) : 17179869184.00 GiB"
    )
    assert one(text).cause == "full"


def test_an_error_of_the_host_is_not_taken_for_one_of_the_gpu() -> None:
    verdict = one(HOST)
    assert verdict.cause == "host_memory"
    assert verdict.figures.tried_bytes == 40_000_000_000
    said = " ".join(verdict.advice)
    for word in ("not the GPU's", "num_workers", "pin_memory", "low_cpu_mem_usage", "cgroup"):
        assert word in said


@pytest.mark.parametrize(
    "text",
    [
        "Epoch 3\nKilled",
        "run.sh: line 3:  1234 Killed                  python train.py\n",
        "torch.distributed.elastic: failed (exitcode: -9) local_rank: 0",
        "command terminated with exit code 137",
        "  rank      : 0 (local_rank: 0)\n  exitcode  : -9 (pid: 123)\n  error_file: <N/A>",
        "Signal 9 (SIGKILL) received by PID 77",
        "[1]+  Killed                  python train.py",
        "Epoch 3\r\nKilled\r\n",
        "Command '['python', 'train.py']' died with <Signals.SIGKILL: 9>.",
    ],
)
def test_a_killed_process_likely_lacked_memory_of_the_host(text: str) -> None:
    verdict = one(text)
    assert verdict.cause == "host_memory"
    assert "likely" in verdict.advice[0]
    assert "host_memory: likely, the memory of the host" in screen(text)


@pytest.mark.parametrize(
    "text",
    [
        "no process was killed",
        "Killed the old worker.\nDone",
        "ValueError: bad shape\nUnable to shutdown process 77 via 15, forcefully exiting via "
        "Signals.SIGKILL\nfailed (exitcode: 1) local_rank: 0",
        "  exitcode  : 1 (pid: 137)",
        "KeyError: 'labels'\nsrun: sending SIGKILL to remaining tasks",
        "slurmstepd: error: *** JOB 77 ON n1 CANCELLED DUE TO TIME LIMIT ***\nKilled",
        "*** STEP 77.0 CANCELLED DUE TO TIME LIMIT *** Killed",
    ],
)
def test_other_uses_of_the_word_are_no_error(text: str) -> None:
    assert one(text).cause == "no_figures"


def test_a_process_that_was_killed_long_before_the_end_is_no_error() -> None:
    assert one("Killed" + "\nall is well " * 99).cause == "no_figures"


def test_the_error_before_the_end_of_a_killed_process_has_precedence() -> None:
    assert one(f"{FULL}\nKilled").cause == "full"


def test_errors_of_several_ranks_are_listed_with_rank_and_gpu() -> None:
    shown = screen(f"[rank1]: {FRAGMENTED}\n[rank0]: {FULL}")
    assert "line 1, rank 1, GPU 1: fragmentation" in shown
    assert "line 2, rank 0, GPU 0: full" in shown
    assert "The last error, of rank 0, GPU 0:" in shown
    assert "full: the card is full; rank 1, GPU 1: fragmentation" in shown


def test_of_ranks_with_one_cause_the_first_error_is_explained() -> None:
    later = FULL.replace("GPU 0", "GPU 1").replace("2.00 GiB", "3.00 GiB")
    shown = screen(f"[rank0]: {FULL}\n[rank1]: {later}")
    assert "The first error, of rank 0, GPU 0:" in shown
    assert "2.00 GiB tried > 1.69 GiB" in shown
    assert "; rank" not in shown


def test_json_has_rank_and_gpu_of_an_error() -> None:
    document = explain_message.document(explain(f"[rank3]: {FRAGMENTED}\n{OLD}"))
    assert [(each["rank"], each["gpu"]) for each in document["ooms"]] == [(3, 1), (None, 0)]
    bare = explain_message.document(explain("CUDA out of memory"))
    assert (bare["rank"], bare["gpu"]) == (None, None)


def test_ranks_that_share_a_line_keep_their_numbers() -> None:
    cut = FRAGMENTED[: FRAGMENTED.index(" 1.20 GiB")]
    first, last = explain(f"[rank1]: {cut}[rank0]: {FULL}")
    assert (first.message.place, last.message.place) == ("rank 1, GPU 1", "rank 0, GPU 0")
    assert "== line 1, rank 1, GPU 1 ==" in explain_message.text([first, last])
