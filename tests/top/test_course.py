"""The course of a run agrees with the moment at every entry."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from allocsim import load, replay
from allocsim.analysis.top.answer import Course, course_of
from allocsim.ownership.blocks import Blocks, blocks_of
from allocsim.ownership.scene import Scene, scene_of
from allocsim.ownership.stacks import Phase, StackKind, kinds_of
from allocsim.recording import Recording
from allocsim.replaying import prepare

TRACES = Path(__file__).parents[2] / "traces"
RECORDINGS = [
    TRACES / "gpt2-ragged-oom-torch2.15.pickle.gz",
    TRACES / "recordings" / "llama_checkpointing-default-torch2.15.npz.gz",
    TRACES / "recordings" / "greedy_decoding-default-torch2.15.npz.gz",
]


def seen(recording: Recording) -> tuple[Scene, Course]:
    (prepared,) = prepare(recording)
    trace = prepared.trace
    blocks = blocks_of(trace, prepared.start, replay(recording).devices[0].timeline)
    kinds = kinds_of(trace.frame_table, np.unique(blocks.stack).tolist())
    scene = scene_of(blocks, kinds, is_state_only=False)
    return scene, course_of(scene, len(trace))


@pytest.mark.parametrize("path", RECORDINGS, ids=lambda path: path.name)
def test_course_agrees_with_the_steps_and_phases_of_moments(path: Path) -> None:
    scene, course = seen(load(path))
    edges = {int(at) for at in (*course.step_starts, *course.phase_starts)}
    last = scene.blocks.n_entries - 1
    for entry in sorted({min(max(edge + by, 0), last) for edge in edges for by in (-1, 0, 1)}):
        step = int(np.searchsorted(course.step_starts, entry, side="right"))
        assert step == scene.step_at(entry)
        at = int(np.searchsorted(course.phase_starts, entry, side="right")) - 1
        assert Phase(int(course.phase[at])) is scene.phase_at(entry)
    assert course.phase_starts[0] == 0
    assert all(before < after for before, after in pairwise(course.phase_starts.tolist()))


def test_a_training_run_has_seven_steps_of_five_phases() -> None:
    _, course = seen(load(RECORDINGS[0]))
    assert course.step_starts.tolist()[:3] == [0, 4181, 8158]
    assert len(course.step_starts) == 7
    assert {course.phases[kind] for kind in course.phase[2:].tolist()} == {
        *("the program's own code", "forward", "backward", "optimizer"),
    }


def test_course_ends_where_the_replay_stops() -> None:
    scene, _ = seen(load(RECORDINGS[0]))
    course = course_of(scene, 8_158)
    assert course.step_starts.tolist() == [0, 4181], "the third step begins at entry 8,158"
    assert course.phase_starts.max() < 8_158


def test_course_without_stacks_has_no_steps_and_phases() -> None:
    none = np.zeros(3, dtype=np.int64)
    blocks = Blocks(
        address=none.astype(np.uint64),
        size=none,
        requested=none,
        stream=none.astype(np.uint64),
        pool=none.astype(np.int32),
        stack=(none - 1).astype(np.int32),
        born=np.array([-1, 0, 4]),
        freed=none + 9,
        completed=none + 9,
        n_entries=9,
        pools=(),
    )
    scene = scene_of(blocks, {-1: StackKind(Phase.UNTOLD)}, is_state_only=False)
    course = course_of(scene, 9)
    assert course.step_starts.tolist() == []
    assert course.phase_starts.tolist() == [0]
    assert not course.phase.any()
