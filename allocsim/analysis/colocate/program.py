"""One of several recorded programs that share a card."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from string import ascii_uppercase

import numpy as np
from numpy.typing import NDArray

from allocsim.errors import ConfigError, RecordingError
from allocsim.recording import MarkKind, load
from allocsim.replaying import Prepared, parting_of, prepare
from allocsim.simulation import Plan, Setting
from allocsim.state import DEFAULT_POOL, PoolId

_EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True, eq=False)
class Program:
    """Recorded program, and the setting under which it runs.

    letter: name of the program in phases, by its position on the command line.
    prepared: device of its recording, prepared for replay.
    setting: allocator setting of the replay.
    context: bytes of its CUDA context.
    has_context: the recording or the user gives `context`.
    """

    letter: str
    prepared: Prepared
    setting: Setting
    context: int
    has_context: bool

    @property
    def path(self) -> str:
        return self.prepared.path

    @cached_property
    def plan(self) -> Plan:
        """Steps of the program, without the recorded answers of the driver."""
        return self.prepared.plan_under(self.setting, self.prepared.free_plan)

    def __len__(self) -> int:
        return len(self.plan.steps)

    def step_at(self, entry: int) -> int:
        """Return the number of the first step that belongs to `entry` or a later entry."""
        return int(np.argmax(np.append(self.plan.steps.entry, len(self.prepared.trace)) >= entry))

    @cached_property
    def times(self) -> NDArray[np.int64]:
        """Time of each step in microseconds, never decreasing.

        Raises RecordingError if the entries have no times.
        """
        times = self.prepared.trace.time_us
        if times is None:
            what = "its entries have no times; expected time_us (PyTorch 2.2 or later), or --phases"
            raise RecordingError(self.path, what)
        entry = np.clip(self.plan.steps.entry, 0, max(len(times) - 1, 0))
        return np.maximum.accumulate(times[entry])

    @cached_property
    def training_steps(self) -> tuple[int, ...]:
        """Entries at which a training step begins, as the program reported them."""
        marks = self.prepared.marks
        return tuple(mark.entry for mark in marks if mark.kind is MarkKind.STEP)

    @cached_property
    def mempools(self) -> tuple[PoolId, ...]:
        """MemPools of the program, in order of creation; a sleeping vLLM engine releases them.

        A recording without marks does not separate MemPools from handles of `graph_pool_handle`,
        so all pools that the program created itself count (their ids are (0, n)).
        """
        made = [m.value for m in self.prepared.marks if m.kind is MarkKind.POOL_CREATED]
        found = [each for each in made if isinstance(each, tuple)]
        own = {pool for pool in self.plan.pools if pool[0] == 0} - {DEFAULT_POOL}
        return tuple(found) or tuple(sorted(own))

    @property
    def is_proved(self) -> bool:
        """True if the replay under the recorded settings is equal to the recording."""
        return parting_of(self.prepared) is None

    def expandable(self) -> Program:
        """Return the program with expandable segments."""
        config = self.setting.config(self.prepared.release)
        if config.expandable_segments:
            return self
        conf = self.setting.conf
        return replace(self, setting=replace(
            self.setting, conf=f"{conf},{_EXPANDABLE}" if conf else _EXPANDABLE
        ))  # fmt: skip


def programs_in(
    paths: Sequence[str],
    *,
    conf: str | None,
    torch_version: str | None,
    device: int | None,
    context: int | None,
) -> tuple[Program, ...]:
    """Load the programs; their letters are A, B, C and so on.

    conf: setting of all programs; None for the recorded ones.
    context: bytes of each CUDA context; None for the recorded ones.
    Raises ConfigError for a wrong number of files, and RecordingError for a recording of several
    devices without `device`.
    """
    if not 2 <= len(paths) <= len(ascii_uppercase):
        raise ConfigError(f"{len(paths)} recording(s) given; expected 2 to {len(ascii_uppercase)}")
    programs = []
    for letter, path in zip(ascii_uppercase, paths, strict=False):
        ready = prepare(load(path), device, torch_version)
        if len(ready) > 1:
            what = f"has {len(ready)} devices; expected one, or --device N"
            raise RecordingError(path, what)
        prepared = ready[0]
        if prepared.others_memory:  # the other programs of this card are given as files
            prepared = replace(prepared, is_elsewhere=True)
        setting = prepared.recorded if conf is None else Setting(conf)
        setting.config(prepared.release)  # raises ConfigError for a conf that is refused
        own = prepared.context_memory
        known = own if context is None else context
        programs.append(Program(letter, prepared, setting, known, bool(own) or context is not None))
    return tuple(programs)
