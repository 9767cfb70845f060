"""Out-of-memory texts in every wording: cut, wrapped, coloured, and in logs."""

from __future__ import annotations

import json
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from allocsim.analysis.explain import Figures, Verdict
from allocsim.analysis.explain.cause import rounding_of
from allocsim.analysis.explain.message_search import find_messages
from allocsim.analysis.explain.verdict import judge_text
from allocsim.units import GIB, KIB, MIB, format_size

MESSAGES = [
    json.loads(line)
    for line in (Path(__file__).parent / "oom_messages.jsonl").read_text().splitlines()
]
FIELDS = {
    "req": "tried",
    "total": "total",
    "alloc": "allocated",
    "resv": "reserved",
    "unalloc": "idle",
    "cached": "idle",
    "free": "free",
    "allowed": "limit",
    "proc": "process",
    "priv": "pool",
}
MODERN = (
    "CUDA out of memory. Tried to allocate 546.00 MiB. GPU 0 has a total capacity of 15.77 GiB of "
    "which 514.19 MiB is free. Process 562167 has 15.25 GiB memory in use. Of the allocated "
    "memory 13.73 GiB is allocated by PyTorch, with 46.00 MiB allocated in private pools (e.g., "
    "CUDA Graphs), and 736.86 MiB is reserved by PyTorch but unallocated. If reserved but "
    "unallocated memory is large try setting PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to "
    "avoid fragmentation."
)
OLD = (
    "CUDA out of memory. Tried to allocate 256.00 MiB (GPU 0; 15.78 GiB total capacity; 14.56 GiB "
    "already allocated; 38.44 MiB free; 14.80 GiB reserved in total by PyTorch)"
)


def one(text: str) -> Verdict:
    (verdict,) = judge_text(text)
    return verdict


def mebibytes(figures: Figures) -> dict[str, float]:
    """Return every known figure in MiB with two decimals."""
    known = {name: getattr(figures, f"{name}_bytes") for name in dict.fromkeys(FIELDS.values())}
    return {name: round(size / MIB, 2) for name, size in known.items() if size is not None}


WHOLE = mebibytes(find_messages(MODERN)[0].figures)


@pytest.mark.parametrize("row", MESSAGES, ids=lambda row: str(row["id"]))
def test_find_messages_reads_published_error_texts(row: dict[str, Any]) -> None:
    verdict = one(row["text"])
    assert verdict.cause in row["cause"]
    for key, size in row["parsed_bytes"].items():
        read = getattr(verdict.figures, f"{FIELDS[key]}_bytes")
        assert abs(read - size) <= max(1, rounding_of(size)), key


def test_find_messages_reads_every_size_of_the_newest_wording() -> None:
    assert WHOLE == {
        "tried": 546.0,
        "total": 16148.48,
        "allocated": 14059.52,
        "idle": 736.86,
        "free": 514.19,
        "process": 15616.0,
        "pool": 46.0,
    }


def test_cached_in_old_texts_means_idle_memory() -> None:
    """pytorch#31252, of 2019: 4.01 + 0.35 + 5.54 GiB fill a card of 10.76 GiB only then."""
    figures = one(
        "CUDA out of memory. Tried to allocate 1.72 GiB (GPU 0; 10.76 GiB total capacity; "
        "4.01 GiB already allocated; 356.00 MiB free; 5.54 GiB cached)"
    ).figures
    assert figures.idle_bytes == int(5.54 * GIB)
    assert figures.reserved_bytes is None


@pytest.mark.parametrize(
    ("text", "expected", "cause"),
    [
        (  # Intel
            "XPU out of memory. Tried to allocate 4.66 GiB. GPU 0 has a total capacity of 5.65 "
            "GiB of which 1.65 GiB is free. Of the allocated memory 195.50 KiB is allocated by "
            "PyTorch, and 1.81 MiB is reserved by PyTorch but unallocated. Please use "
            "`empty_cache` to release all unoccupied cached memory.",
            {
                "tried": 4771.84,
                "total": 5785.6,
                "allocated": 0.19,
                "idle": 1.81,
                "free": 1689.6,
            },
            "full",
        ),
        (  # Ascend, as some builds shorten it
            "NPU out of memory. Tried to allocate 386.00 MiB\n(NPU 0; 61.27 GiB total; 13.40 GiB "
            "already allocated; 26.41 MiB free)",
            {"tried": 386.0, "total": 62740.48, "allocated": 13721.6, "free": 26.41},
            "full",
        ),
        (  # Apple before it wrote GiB
            "MPS backend out of memory (MPS allocated: 17.26 GB, other allocations: 768.00 KB, "
            "max allowed: 18.13 GB). Tried to allocate 1.00 GB on private pool.",
            {"tried": 1024.0, "allocated": 17674.24, "limit": 18565.12, "process": 17674.99},
            "full",
        ),
        (  # a limit on AMD that the request reaches only within the rounding
            "HIP out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 255.98 "
            "GiB of which 244.65 GiB is free. 1.05 GiB allowed; Of the allocated memory 1017.01 "
            "MiB is allocated by PyTorch, with 17.00 MiB allocated in private pools (e.g., HIP "
            "Graphs), and 54.99 MiB is reserved by PyTorch but unallocated.",
            {
                "tried": 2.0,
                "total": 262123.52,
                "allocated": 1017.01,
                "idle": 54.99,
                "free": 250521.6,
                "limit": 1075.2,
                "pool": 17.0,
            },
            "free_above_request",
        ),
        (  # PyTorch 2.12's policy
            "CUDA out of memory. Allocation was preemptively rejected because it would exceed "
            "per_process_memory_fraction limit. Requested size: 3.00 GiB",
            {"tried": 3072.0},
            "fraction_limit",
        ),
        ("CUDA out of memory. Tried to allocate more than 1EB memory.", {}, "impossible"),
        ("RuntimeError: Invalid buffer size: 24.00 GB", {"tried": 24576.0}, "no_figures"),
        (  # an unknown wording with known words
            "GPU OOM! wanted to allocate 512MB; 11GB total; 100MB free",
            {"tried": 512.0, "total": 11264.0, "free": 100.0},
            "full",
        ),
        (
            "free 3.5 GB, total: 24 GB, reserved=20.1GB allocated=19.5GB, requested 5 GB: "
            "CUDA out of memory",
            {
                "tried": 5120.0,
                "total": 24576.0,
                "allocated": 19968.0,
                "reserved": 20582.4,
                "free": 3584.0,
            },
            "full",
        ),
    ],
)
def test_find_messages_reads_wordings_of_other_releases(
    text: str, expected: dict[str, float], cause: str
) -> None:
    verdict = one(text)
    assert mebibytes(verdict.figures) == expected
    assert verdict.cause == cause


def test_asynchronous_error_ends_before_the_following_table() -> None:
    verdict = one(
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of "
        "memory)\nCurrently allocated     : 10.48 GiB\nRequested               : 9.81 GiB\n"
        "Device limit            : 15.93 GiB\nFree (according to CUDA): 0 bytes\n"
        "PyTorch limit (set by user-supplied memory fraction)\n"
        "                        : 17179869184.00 GiB\n\n"
        "Memory summary: |=====|\n| Allocated memory |  10471 MiB |  11303 MiB |\n"
    )
    assert mebibytes(verdict.figures) == {
        "tried": 10045.44,
        "total": 16312.32,
        "allocated": 10731.52,
        "free": 0.0,
    }
    assert verdict.message.is_async
    assert verdict.cause == "full"


@pytest.mark.parametrize(
    "after",
    [
        "\nTime taken: 2m 24.41s\nTorch active/reserved: 3457/3576 MiB, Sys VRAM: 4096/4096 MiB",
        "\nreserved: 3457/3576 MiB",
        "\n\nMemory summary:\n| GPU reserved memory: 3 GiB |",
        "\n| 41C    P8    31W / 149W |    451MiB /  6144MiB |      0%      Default |",
    ],
)
def test_find_messages_ignores_text_of_other_programs_after_the_error(after: str) -> None:
    assert mebibytes(one(MODERN + after).figures) == WHOLE


def test_find_messages_separates_other_processes_from_this_one() -> None:
    named = find_messages(
        "CUDA out of memory. Tried to allocate 12.00 GiB. GPU 0 has a total capacty of 23.65 GiB "
        "of which 7.95 GiB is free. Process 1957120 has 7.10 GiB memory in use. Including "
        "non-PyTorch memory, this process has 8.58 GiB memory in use. Of the allocated memory "
        "8.13 GiB is allocated by PyTorch, and 8.94 MiB is reserved by PyTorch but unallocated."
    )[0]
    assert named.figures.process_bytes == int(8.58 * GIB)
    assert named.others == ((1957120, int(7.10 * GIB)),)
    # In a container all processes are numbers; this one is large enough to hold PyTorch's memory.
    container = find_messages(
        MODERN.replace("Process 562167", "Process 7 has 1.00 GiB memory in use. Process 562167")
    )[0]
    assert container.figures.process_bytes == int(15.25 * GIB)


@pytest.mark.parametrize("width", [24, 33, 60, 79])
def test_find_messages_joins_wrapped_lines(width: int) -> None:
    by_words = "\n".join(textwrap.wrap(MODERN, width))
    by_letters = "\n".join(MODERN[i : i + width] for i in range(0, len(MODERN), width))
    assert mebibytes(one(by_words).figures) == WHOLE
    assert mebibytes(one(by_letters).figures) == WHOLE


@pytest.mark.parametrize(
    "prefix",
    [
        "[rank3]: ",
        "[default0]:[rank0]: ",
        "(RayTrainWorker pid=812, ip=10.0.0.3) ",
        "ERROR 10-23 14:05:11 [core.py:400] ",
        "2024-05-11 02:24:26,980 - ERROR: ",
        "2026-04-29T01:46:33.4647732Z ",
        "3: ",
        "> > ",
        "E   ",
        "| ",
    ],
)
def test_find_messages_skips_prefixes_of_lines(prefix: str) -> None:
    text = "".join(f"{prefix}{line}\r\n" for line in textwrap.wrap(MODERN, 60))
    assert mebibytes(one(text).figures) == WHOLE


def test_text_inside_other_formats() -> None:
    record = json.dumps({"level": "error", "message": f"Traceback:\n  File x\n{MODERN}", "n": 3})
    quoted = json.dumps(record)
    coloured = MODERN.replace("out of memory", "\x1b[1;31mout of memory\x1b[0m").replace(
        "15.77", "\x1b[32m15.77\x1b[0m"
    )
    for text in (record, quoted, coloured, coloured.replace("\x1b", "\\u001b"), MODERN.upper()):
        assert mebibytes(one(text).figures) == WHOLE


def test_a_raw_byte_in_place_of_the_device() -> None:
    """PyTorch 2.3 prints the index as a raw byte; for GPU 0 the text often ends there."""
    cut = one("CUDA out of memory. Tried to allocate 546.00 MiB. GPU ")
    assert mebibytes(cut.figures) == {"tried": 546.0}
    assert cut.cause == "no_figures"
    assert mebibytes(one(MODERN.replace("GPU 0", "GPU \0")).figures) == WHOLE


def test_a_log_with_several_errors() -> None:
    text = "\n".join(row["text"] for row in MESSAGES)
    verdicts = judge_text(text)
    assert len(verdicts) == len(MESSAGES)
    for line, (row, verdict) in enumerate(zip(MESSAGES, verdicts, strict=True), start=1):
        assert verdict.message.line == line
        assert verdict.cause in row["cause"]


def test_find_messages_counts_one_error_once() -> None:
    """Class name, driver text and allocator text are one error, as is the line of a check."""
    assert len(judge_text(f"torch.cuda.OutOfMemoryError: {MODERN}")) == 1
    assert (
        len(
            judge_text(
                "THCudaCheck FAIL file=THCStorage.cu line=58 error=2 : out of memory\n"
                "Traceback (most recent call last):\n  File 'train.py', line 3\n"
                "RuntimeError: cuda runtime error (2) : out of memory at THCStorage.cu:58"
            )
        )
        == 1
    )
    hinted = "CUDA error: out of memory\nSearch for `cudaErrorMemoryAllocation' in the manual.\n"
    assert len(judge_text(hinted)) == 1
    assert len(judge_text(hinted * 2)) == 2
    source = "    except torch.cuda.OutOfMemoryError as error:\n        raise\n" * 3
    assert [mebibytes(found.figures) for found in find_messages(source * 9 + MODERN)] == [WHOLE]


def test_ranks_that_fail_together() -> None:
    text = "\n".join(f"[rank{n}]: {OLD.replace('GPU 0', f'GPU {n}')}" for n in range(8))
    assert [verdict.cause for verdict in judge_text(text)] == ["fragmentation_likely"] * 8


def test_backend_is_the_last_name_before_the_error() -> None:
    text = "torch.cuda.OutOfMemoryError: " + MODERN.replace("CUDA out", "HIP out")
    assert find_messages(text)[0].backend == "HIP"
    assert [m.backend for m in find_messages("\n".join([OLD, OLD.replace("CUDA", "NPU")]))] == [
        "CUDA",
        "NPU",
    ]


@pytest.mark.parametrize("text", ["", "hello", "\0", "GPU 0 has 3 GiB", "Loss: 3.2", "🔥" * 99])
def test_text_without_an_error(text: str) -> None:
    verdict = one(text)
    assert verdict.cause == "no_figures"
    assert "No out-of-memory error was found" in verdict.advice[0]


# -- properties ------------------------------------------------------------------------------

amounts = st.one_of(st.integers(0, 1024), st.integers(KIB, MIB), st.integers(MIB, 640 * GIB))
WORDINGS = {
    "1.0": "CUDA out of memory. Tried to allocate {tried} (GPU 0; {total} total capacity; "
    "{allocated} already allocated; {free} free; {idle} cached)",
    "1.4": "CUDA out of memory. Tried to allocate {tried} (GPU 1; {total} total capacity; "
    "{allocated} already allocated; {free} free; {limit} allowed; {reserved} reserved in total by "
    "PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb",
    "2.1": "CUDA out of memory. Tried to allocate {tried}. GPU 0 has a total capacty of {total} of "
    "which {free} is free. Including non-PyTorch memory, this process has {process} memory in "
    "use. Of the allocated memory {allocated} is allocated by PyTorch, and {idle} is reserved by "
    "PyTorch but unallocated. If reserved but unallocated memory is large",
    "2.5": "HIP out of memory. Tried to allocate {tried}. GPU 0 has a total capacity of {total} of "
    "which {free} is free. {limit} allowed; Of the allocated memory {allocated} is allocated by "
    "PyTorch, with {pool} allocated in private pools (e.g., CUDA Graphs), and {idle} is reserved "
    "by PyTorch but unallocated.",
    "NPU": "NPU out of memory. Tried to allocate {tried} (NPU 0; {total} total capacity; "
    "{allocated} already allocated; {other} current active; {free} free; {reserved} reserved in "
    "total by PyTorch)",
    "async": "Allocation on device 0 would exceed allowed memory. (out of memory)\n"
    "Currently allocated     : {allocated}\nRequested               : {tried}\n"
    "Device limit            : {total}\nFree (according to CUDA): {free}\n"
    "PyTorch limit (set by user-supplied memory fraction)\n                        : {limit}",
    "MPS": "MPS backend out of memory (MPS allocated: {allocated}, other allocations: {other}, "
    "max allowed: {limit}). Tried to allocate {tried} on shared pool.",
}
NAMES = ("tried", "total", "allocated", "reserved", "idle", "free", "limit", "process", "pool")


@pytest.mark.parametrize("wording", WORDINGS)
@given(values=st.lists(amounts, min_size=10, max_size=10))
def test_find_messages_reads_any_sizes_that_pytorch_prints(wording: str, values: list[int]) -> None:
    sizes = dict(zip((*NAMES, "other"), values, strict=True))
    text = WORDINGS[wording].format(**{name: format_size(size) for name, size in sizes.items()})
    (message,) = find_messages(text)
    for name in NAMES:
        if f"{{{name}}}" in WORDINGS[wording]:
            read = getattr(message.figures, f"{name}_bytes")
            assert abs(read - sizes[name]) <= rounding_of(sizes[name]) + 1, (name, text)


scraps = st.sampled_from(
    [
        "out of memory",
        "Tried to allocate ",
        "3.00 GiB",
        "9" * 30,
        ".",
        "\n",
        "\\n",
        "\x1b[",
        "0 ",
        "is free",
        " free: ",
        "(",
        ")",
        "CUDA",
        "\x00",
        "Process 1 has ",
        "OutOfMemoryError",
        "[",
        "|",
    ]
)


@settings(max_examples=200)
@given(st.one_of(st.text(), st.lists(scraps | st.text(max_size=4)).map("".join)))
def test_find_messages_accepts_any_text(text: str) -> None:
    for verdict in judge_text(text):
        assert verdict.advice


@pytest.mark.parametrize(
    "filler",
    [
        "x" * 80 + "\n",
        "epoch 3 | loss 0.213 | 12.1 GiB allocated | memory fine\n",
        "[" * 80,
        "( ",
        "out of " * 9,
        "1,234,567",
        "failed to allocate ",
        "\\" * 9,
        " " * 99,
        "E " * 40,
        "9" * 99,
        "vllm",
        "vllm/",
        "sglang/x, line 3, in ",
        "Traceback (most recent call last):\n  File x, line 3, in f\nCUDA out of memory\n",
    ],
)
def test_long_logs_take_time_in_proportion(filler: str) -> None:
    """Check that twenty times the text takes less than a hundred times as long."""
    short, long = (filler * (size // len(filler)) + MODERN for size in (20_000, 400_000))
    assert _seconds(long) < max(100 * _seconds(short), 1.0)


def _seconds(text: str) -> float:
    started = time.process_time()
    assert judge_text(text)
    return time.process_time() - started


@pytest.mark.slow
def test_find_messages_reads_five_megabytes_in_time() -> None:
    lines = "2026-04-29 01:46:33 INFO step 17 loss 0.213 allocated 12.1 GiB of memory\n" * 60_000
    log = lines[:2_500_000] + MODERN + "\n" + lines[:2_500_000]
    assert _seconds(log) < 2
