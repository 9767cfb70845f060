"""A language model that serves several users at once, each with a growing key-value cache.

A cache grows by allocation of a larger cache and a free of the old cache.  The freed memory is
always slightly too small for the next cache, because all caches keep growing.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from allocsim.recording import Recording
from allocsim.units import MIB, parse_size
from allocsim.workload.recorder import Recorder

_FILE = "serve.py"


@dataclass(slots=True)
class _Session:
    """User whose question the server is answering.

    cache: address of the cache.
    tokens: number of tokens in the cache.
    end: number of tokens at which the answer is complete.
    """

    cache: int
    tokens: int
    end: int


def server(
    *,
    requests: int = 100,
    concurrent: int = 8,
    prompt: int = 512,
    answer: int = 256,
    growth: int = 32,
    cache_size: int | str = "72KiB",
    weights: int | str = "2GiB",
    seed: int = 0,
    device_memory: int | str = "24GiB",
    conf: str = "",
    entries: int | None = None,
) -> Recording:
    """Simulate the growing key-value caches of a server.

    requests: number of questions from users.
    concurrent: number of questions that the server answers at the same time.
    prompt, answer: highest number of tokens of a prompt and of an answer.  Actual numbers are
        random, from an eighth of the highest number on.
    growth: tokens by which a cache grows at a time.
    cache_size: bytes of cache per token.
    weights: bytes of the model, in tensors of 64 MiB.
    entries: number of entries to generate, in place of `requests`.
    """
    options = dict(locals())
    bytes_a_token = parse_size(cache_size)
    chance = random.Random(seed)
    recorder = Recorder(device_memory, conf)
    prefill = recorder.code(_FILE, "prefill", 41)
    grow = recorder.code(_FILE, "grow_cache", 55)
    finish = recorder.code(_FILE, "finish", 70)
    sessions: list[_Session] = []

    def turn() -> None:
        """Add `growth` tokens to every session and finish the complete ones."""
        for session in list(sessions):
            session.tokens += growth
            longer = recorder.malloc(session.tokens * bytes_a_token, grow)
            recorder.free(session.cache, grow)
            session.cache = longer
            if session.tokens >= session.end:
                recorder.free(session.cache, finish)
                sessions.remove(session)

    with recorder.program():
        for _ in range(parse_size(weights) // (64 * MIB)):
            recorder.malloc(64 * MIB, recorder.code(_FILE, "load_model", 9))
        for _ in recorder.rounds(requests, entries):
            while len(sessions) >= concurrent:
                turn()
            tokens = chance.randint(max(prompt // 8, 1), max(prompt, 1))
            end = tokens + chance.randint(max(answer // 8, 1), max(answer, 1))
            cache = recorder.malloc(tokens * bytes_a_token, prefill)
            sessions.append(_Session(cache, tokens, end))
        while sessions:
            turn()
    return recorder.recording("server", options)
