"""Sentences about processes are removed only if they have PyTorch's exact form."""

from __future__ import annotations

import pytest

from allocsim.verify.installed import without_processes

HEAD = (
    "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 139.80 GiB of "
    "which 3.56 GiB is free. "
)
TAIL = "1024.00 MiB allowed; Of the allocated memory 512 bytes is allocated by PyTorch, and "


def test_process_sentences_are_removed() -> None:
    """They keep the driver's order; in a container the id of this process may be hidden."""
    text = (
        f"{HEAD}Process 4711 has 131.70 GiB memory in use. Including non-PyTorch memory, this "
        f"process has 546.00 MiB memory in use. Process 9 has 17179869184.00 GiB memory in use. "
        f"{TAIL}"
    )
    assert without_processes(text) == HEAD + TAIL


@pytest.mark.parametrize(
    "sentence",
    [
        "",
        "Process 0 has 1.00 GiB memory in use. ",
        "Process 12 has 1.0 GiB memory in use. ",
        "Process 12 has 1.00 TiB memory in use. ",
        "Process 12 has 1.00 GiB memory in use, ",
        "Including memory, this process has 1.00 GiB memory in use. ",
        2 * "Including non-PyTorch memory, this process has 1.00 GiB memory in use. ",
    ],
)
def test_text_without_process_sentences_is_unchanged(sentence: str) -> None:
    text = HEAD + sentence + TAIL
    assert without_processes(text) == text


def test_process_sentence_in_another_place_is_kept() -> None:
    text = HEAD + TAIL + "Process 12 has 1.00 GiB memory in use. "
    assert without_processes(text) == text
    text = "CUDA driver error: invalid argument"
    assert without_processes(text) == text
