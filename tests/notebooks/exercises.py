"""Correct answers to the exercise of each notebook, derived from the allocator's rules.

No answer comes from a run.  A comment beside each answer gives the rule.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["EXERCISES", "Exercise"]

MIB = 2**20

Answers = dict[str, object]


@dataclass(frozen=True, slots=True)
class Exercise:
    """One exercise.

    notebook: the first character of its name.  needs: the cells that must have run, by id.
    right: what must be accepted.  wrong: one name, an answer that must not be, and what the check
    then says is right.  rule: a word of the rule that it must give for that.
    """

    notebook: str
    needs: tuple[str, ...]
    right: Answers
    wrong: tuple[str, object, str]
    rule: str


EXERCISES = (
    Exercise(
        "1",
        ("imports",),
        {
            "a": 0,  # a segment of 2 MiB for the small pool
            "b": 2 * MIB,  # the first segment of the large pool, 20 MiB
            "c": 7 * MIB,  # behind the 5 MiB of b
            "d": 2 * MIB,  # the hole of b; the leftover, exactly 1 MiB, is not split off
            "e": 1024,  # 1 MiB is small still: behind the 1,024 bytes of a
            "f": 10 * MIB,  # 1 MiB + 1 is large: behind the 3 MiB of c
            "g": 22 * MIB,  # nothing has 24.5 MiB: a segment of 26, 1.5 stay free
            "h": 7 * MIB,  # c, f and the tail are one free block of 15 MiB; 1.5 stay free
            "i": 20 * MIB + MIB // 2,  # two free blocks of 1.5 MiB: the older segment's
            "j": 46 * MIB + MIB // 2,  # and then the other
        },
        ("h", 48 * MIB, "7,340,032"),
        "merge",
    ),
    Exercise(
        "2",
        ("load", "proof", "memory", "who"),
        {
            "how many": 3,
            "MiB each": 560,  # 587,001,760 bytes in an entry of the recording: 559.8 MiB
            "made for": ["gpt.py:19 forward", "no stack recorded", "no stack recorded"],
        },
        ("how many", 1, "3"),
        "entry 13,714",
    ),
    Exercise(
        "3",
        ("imports",),
        {"cause": "fraction_limit"},  # 23.77 GiB reserved and 2 MiB are more than 23.77 allowed
        ("cause", "fragmentation", "fraction_limit"),
        "23.77 GiB allowed",
    ),
    Exercise(
        "4",
        ("imports",),
        {
            "63 MiB": False,  # below M: never a block of M or more
            "64 MiB": False,  # 36 MiB wasted
            "80 MiB": False,  # 20 MiB wasted, and less than 20 are allowed
            "81 MiB": True,  # 19 MiB wasted
            "100 MiB": True,
        },
        ("80 MiB", True, "False"),
        "max_non_split_rounding_mb",
    ),
    Exercise(
        "5",
        ("imports",),
        {
            "a": 20,  # one handle
            "b": 40,  # 30 MiB need two
            "c": 40,  # 3 MiB fit behind them
            "free(a)": 40,  # a free gives nothing back
            "free(b)": 40,
            "empty_cache()": 20,  # 30 MiB are free, and hold one whole handle
        },
        ("empty_cache()", 0, "20"),
        "release all",
    ),
    Exercise(
        "6",
        ("imports",),
        {
            "a": 0,
            "b": 4,  # a is pending: the front of the tail
            "c": 0,  # the event has passed: the hole of 4 MiB fits exactly
            "d": 20,  # another stream: a new segment behind the first
        },
        ("b", 0, "4"),
        "pending",
    ),
    Exercise(
        "7",
        ("imports",),
        {
            "served": 2.3,  # 2 bytes each: 2,471,628,800
            "trained": 9.2,  # 2 + 2 + 4
            "autocast": 18.4,  # 4 + 4 + 8
            "sgd": 9.2,  # 4 + 4
        },
        ("trained", 18.4, "9.2"),
        "moments",
    ),
)
