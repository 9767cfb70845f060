"""One device of a recording, prepared once and replayed under any number of settings.

`Prepared` computes the plan (the steps of a replay), the start state, the placement of segments and
the proof of a device on first use, and keeps them.  If the recording starts mid-run, a what-if
starts with the recorded segments, or it starts empty and first requests the blocks that were live
at the start of the recording.  `choose_start` chooses the start with the smaller error in
benchmarks/midrun.py (table in docs/evidence/fidelity.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from allocsim.core import (
    Folder,
    FreeBlockOrder,
    ReplayAllocator,
)
from allocsim.errors import ConfigError, UndefinedBehaviorError, UpstreamError
from allocsim.fidelity import Compared, Expected
from allocsim.inference import OtherPlan, Quiet, open_plans, plan_of, quiet_moments
from allocsim.replaying.equivalence import large_segments_matter, requested_of
from allocsim.simulation import (
    Addresses,
    Deferred,
    Drive,
    Observer,
    Parting,
    Period,
    Plan,
    Progress,
    RecordedDevice,
    Setting,
    Start,
    find_period,
    fold,
    has_live_blocks,
)


def choose_start(device: RecordedDevice, setting: Setting, breaks: Callable[[], bool]) -> Start:
    """Return the start state of a replay under `setting`.

    The replay starts with the recorded segments, unless `setting` changes expandable_segments or
    large_segment_size, or `breaks` returns True.

    breaks: function that replays from the recorded segments, and returns True if the replay ends in
        undefined behaviour of PyTorch.
    """
    if not has_two_starts(device, setting):
        return Start.KEPT
    config = setting.config(device.release)
    if config.expandable_segments != device.config.expandable_segments:
        return Start.REALLOCATED
    # large_segment_size has no effect if no requests share a segment.
    is_changed = config.large_segment_size != device.config.large_segment_size
    if is_changed and large_segments_matter(
        config, map(config.round_size, requested_of(device).sizes.tolist())
    ):
        return Start.REALLOCATED
    is_broken = may_break(device, setting) and breaks()
    return Start.REALLOCATED if is_broken else Start.KEPT


def may_break(device: RecordedDevice, setting: Setting) -> bool:
    """Return True if a replay under `setting` may end in undefined behaviour of PyTorch.

    It may if the recorded segments have a split block of max_split_size or more.
    """
    size = setting.config(device.release).max_split_size
    return has_two_starts(device, setting) and any(
        not segment.is_expandable
        and len(segment.blocks) > 1
        and any(block.size >= size for block in segment.blocks)
        for segment in device.start
    )


def has_two_starts(device: RecordedDevice, setting: Setting) -> bool:
    """Return True if a replay under `setting` can start from either of two states (see `Start`).

    It can if blocks were live before the first entry and `setting` is not the recorded one.
    """
    return has_live_blocks(device.start) and not device.is_recorded(setting)


@dataclass(frozen=True, eq=False)
class Prepared(RecordedDevice):
    """Recorded device, with data that its replays share.

    The data are the plan (allocator calls of a replay), the start states (blocks before the first
    call), the repeated training steps (`period`) and the proof, which is a comparison of a replay
    under the recorded settings with the recording.

    written: this device, prepared for a PyTorch release that can have written the recording; the
        plan is taken from there.  None if `release` itself can have written the recording.
    known_period: function that returns `period`, if the program is known; None to search the plan.
    """

    written: Prepared | None = None
    known_period: Deferred[Period | None] | None = None

    @cached_property
    def plan(self) -> Plan:
        """Steps of the baseline, the replay under the recorded settings.

        They include the recorded results of driver calls: addresses of new segments, and refusals.
        """
        return plan_of(self) if self.written is None else self.written.plan

    @property
    def is_own_release(self) -> bool:
        return self.written is None

    def on(self, device_memory: int | None) -> Prepared:
        """Return this object, or a copy of it for replays on a card of `device_memory` bytes.

        None means the recorded size.  The result is a copy if the size changes the steps of
        a replay (the plan), or if the memory of other processes no longer counts.
        """
        if device_memory not in (None, self.named_memory) and self.others_memory:
            return replace(self, is_elsewhere=True).on(device_memory)
        if self.written is not None:
            written = self.written.on(device_memory)
            return replace(self, written=written, assumed_memory=written.assumed_memory)
        if device_memory is None or self.capacity is not None:
            return self
        plan = self.plan
        # The size of the device only matters where something seems refused or limited.
        is_settled = (
            plan.refused_below is None and plan.limit is None and not plan.n_refused_with_room
        )
        if is_settled or device_memory < plan.max_reserved:
            return self
        assumed = replace(self, assumed_memory=device_memory)
        return assumed if assumed.plan.is_whole else self

    def with_context(self, context_memory: int) -> Prepared:
        """Return a copy whose CUDA context takes `context_memory` bytes of the device."""
        assert self.is_made and self.provenance is not None
        found = replace(self, provenance=replace(self.provenance, context_memory=context_memory))
        vars(found)["plan"] = self.plan  # a context does not change the steps
        return found

    @property
    def capacity(self) -> int | None:
        """Bytes of the device, as recorded, given by the user or in an `oom` entry; else None."""
        return self.capacity_of(self.plan)

    @property
    def inferred(self) -> int | None:
        """Bytes of the device, inferred from refused requests or from the growth of segments.

        None if the size is known otherwise, or if nothing suggests it.
        """
        if self.capacity is not None:
            return None
        return self.plan.fits or self.plan.inferred_capacity

    @property
    def is_edited(self) -> bool:
        return False

    @cached_property
    def proofs(self) -> list[Parting | None]:
        """Cache of the proof, a comparison of the baseline with the recording.

        Empty until the baseline was replayed.  After that, the only item is the first difference,
        or None if there is none.
        """
        return [None] if self.plan.is_proved or self.is_made or self.is_requests else []

    @cached_property
    def quiet_of_proof(self) -> list[Quiet]:
        """Cache of the result of `quiet`, if the replay for the proof computed it: 0 or 1 item."""
        return []

    @cached_property
    def free_plan(self) -> Plan:
        """Steps of replays under other settings: `plan` without the recorded driver results."""
        return replace(self.plan, steps=self.plan.steps.of_program())

    @cached_property
    def open_plans(self) -> tuple[OtherPlan, ...]:
        """Steps (plans) of other programs that would have left the same recording.

        They are replayed to compute the range of possible peaks of a what-if.
        """
        return tuple(open_plans(self, self.free_plan, lambda: self.quiet))

    @cached_property
    def quiet(self) -> Quiet:
        """Steps after which the program may have called empty_cache without leaving an entry.

        At these moments no segment was free, so a call had nothing to release.
        """
        if self.quiet_of_proof:
            return self.quiet_of_proof[0]
        return quiet_moments(self, self.plan, self.free_plan, self.capacity or self.inferred)

    @cached_property
    def addresses(self) -> Addresses:
        return super().addresses if self.written is None else self.written.addresses

    def drive(
        self,
        setting: Setting,
        device_memory: int | None,
        *,
        observers: Iterable[Observer] = (),
        progress: Progress | None = None,
        skips: bool = False,
        fast_path: bool = True,
        folder: Folder = fold,
        start: Start | None = None,
        plan: Plan | None = None,
        addresses: Addresses | None = None,
    ) -> Drive:
        """Replay every step under `setting` as a what-if, and return the finished replay.

        observers: objects whose methods are called for the events of the replay.
        progress: function called with the numbers of entries done and in total.
        skips: skip repeated steps that leave the allocator in the same state; the timeline then
            does not contain them.
        fast_path: False to make each call separately, more slowly, with the same result.
        folder: function that sums up the core's list of changes of blocks (the journal) as
            statistics.
        start, plan, addresses: start state, steps, and placement of segments; None for those that
            this object chooses.
        """
        start = self.start_under(setting, device_memory) if start is None else start
        plan = self.free_plan if plan is None else plan
        allocator = self.allocator(
            setting,
            device_memory,
            addresses=addresses,
            fast_path=fast_path,
            limit=self.limit_for(setting, device_memory, plan),
            start=start,
        )
        drive = Drive(
            allocator,
            self.plan_under(setting, plan),
            len(self.trace),
            dictates=False,
            progress=progress,
            observers=tuple(observers),
            folder=folder,
            lays_out=self.start if start is Start.REALLOCATED else (),
            address_events=(addresses or self.addresses).events,
        )
        drive.run(self._period_for(allocator) if skips else None)
        return drive

    def start_under(self, setting: Setting, device_memory: int | None) -> Start:
        key = setting, device_memory
        if key not in self._starts:
            self._starts[key] = choose_start(self, setting, lambda: self._breaks(*key))
        return self._starts[key]

    def _breaks(self, setting: Setting, device_memory: int | None) -> bool:
        try:
            self.drive(setting, device_memory, skips=True, start=Start.KEPT)
        except UndefinedBehaviorError:
            return True
        except (ConfigError, UpstreamError):
            pass  # the caller's own replay raises the same error
        return False

    @cached_property
    def _starts(self) -> dict[tuple[Setting, int | None], Start]:
        return {}

    def depends_on_device(self, setting: Setting) -> bool:
        """Return True if the memory limit or the start state depends on the device size."""
        has_fraction = self.in_force(setting).fraction(self.release) is not None
        moves = has_fraction or self.plan.limit is not None or bool(self.plan.changes)
        return moves or may_break(self, setting)

    @cached_property
    def expected(self) -> Expected:
        """Recorded entries that each step of `plan` should cause in a replay."""
        return Expected.of(Compared.of(self.trace), self.plan.steps)

    @cached_property
    def period(self) -> Period | None:
        """Longest sequence of equal periods (training steps) of `free_plan`; None without any."""
        known = self.known_period
        return find_period(self.free_plan.steps) if known is None else known()

    def _period_for(self, allocator: ReplayAllocator) -> Period | None:
        # Repetitions may be skipped only if the blocks are the whole state of the allocator.  They
        # are not if the tie-break is the order of creation, if garbage is collected by age, or if
        # settings change at run time.
        counts_objects = self.release.free_block_order is FreeBlockOrder.CREATION
        collects = allocator.collects_garbage_above is not None
        return None if counts_objects or collects or self.plan.changes else self.period
