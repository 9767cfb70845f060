"""Answer of `fit` for one GPU: whether the task fits, with the margin and the memory it needs.

The answer is computed by a run of the program or by its law (formulas for its requests).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil, floor
from typing import TYPE_CHECKING

from allocsim._repr import Shown
from allocsim.core import find_release
from allocsim.fitting.laws import installed_transformers, numbers_of
from allocsim.fitting.run_result import Failure, Ran
from allocsim.fitting.task import Task
from allocsim.phantom import Gpu, context_range
from allocsim.simulation import DeviceRun
from allocsim.units import format_range, format_size

if TYPE_CHECKING:
    from allocsim.recommend import Recommendation


@dataclass(frozen=True, slots=True)
class Drift:
    """Range by which a peak may differ from the peak that a law (formulas for requests) gives.

    A law holds for one release of PyTorch and of transformers, and the user may have others.
    Programs were also run with PyTorch 2.11 and transformers 5.17: all but one had a peak in this
    range (docs/reference/laws.md).

    low, high: ends of the range, in per cent of the law's peak: negative for a lower peak.
    is_known: True if the user's releases are known to differ from the law's, so that `high` decides
        the verdict; False if they are unknown.
    """

    low: float
    high: float
    is_known: bool = False

    def of(self, peak: int) -> tuple[int, int]:
        """Return the range (low, high) of possible peaks in bytes, if the law's peak is `peak`."""
        return floor(peak * (1 + self.low / 100)), ceil(peak * (1 + self.high / 100))

    @property
    def text(self) -> str:
        return f"{self.low:+g} to {self.high:+g} %"


_TRAINING, _SERVING, _EAGER_SERVING = (-2, 6), (-6, 4), (-1, 30)


def drift_of(
    task: Task, torch_version: str, transformers: str, *, torch: str | None, meant: str | None
) -> Drift | None:
    """Return how much a task's peak under the user's releases may differ from that of its law.

    Return None if the user's releases of PyTorch and transformers are those of the law.

    torch_version, transformers: releases with which the law was recorded.
    torch: the user's release of PyTorch; None for the law's release.
    meant: the user's release of transformers; None for the installed release, which is unknown if
        transformers is not installed.

    Raises ConfigError for an invalid release.
    """
    meant = installed_transformers() if meant is None else meant
    differs = meant is not None and numbers_of(meant) != numbers_of(transformers)
    if torch is not None:
        differs |= not torch_version.startswith(f"{find_release(torch).version}.")
    if meant is not None and not differs:
        return None
    ends = _TRAINING if task.is_training else _SERVING
    if not task.is_training and task.attention == "eager":
        ends = _EAGER_SERVING
    return Drift(*ends, is_known=differs)


def drift_of_run(ran: Ran, task: Task, torch: str | None, meant: str | None) -> Drift | None:
    """Return how much a run's peak, computed by a law, may differ under the user's releases.

    Return None if the releases are those of the law, or if `ran` is a run of a program.

    torch, meant: the user's releases of PyTorch and transformers, as for `drift_of`.
    """
    if ran.transformers is None:
        return None
    return drift_of(task, ran.torch_version, ran.transformers, torch=torch, meant=meant)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Fit(Shown):
    """Verdict on whether a program fits a GPU, with the margin and allocator settings that help.

    task: the task, or None for a user's own program.
    program: text of the generated program, or the user's command line.
    conf: value of PYTORCH_CUDA_ALLOC_CONF.
    ran: run on the card, which finishes its work as late as possible: when the program waits for
        it.
    unlimited: run without a memory limit, if the task does not fit; None if it fits, or if the
        unlimited run also fails.
    lent: replay with host memory that the driver lends to the GPU, if the task does not fit; None
        if no memory is lent.
    recommendation: allocator settings under which the task fits, if it does not fit with `conf`.
    keeping_up: run where the card finishes its work at once; None if no freed block waits for work
        of another stream.
    skewed: run where all tokens choose the same experts, if the requests depend on that choice;
        `ran` spreads tokens evenly.
    notes: limits of the answer, one sentence each.
    fits: True if the program completes with the largest expected CUDA context, False if it fails
        with the smallest, None if it depends on the size of the context.
    least_room: bytes, without the CUDA context, of the smallest card on which the task fits; None
        if the task fits `gpu`, or if unknown.
    drift: how much the peak may differ from that of the law under the user's releases; None if
        no law was used, or if the law is of these releases.
    """

    task: Task | None
    program: str
    conf: str | None
    ran: Ran
    unlimited: Ran | None
    lent: DeviceRun | None
    recommendation: Recommendation | None
    keeping_up: Ran | None
    skewed: Ran | None
    notes: tuple[str, ...]
    fits: bool | None
    least_room: int | None = None
    drift: Drift | None = None

    @property
    def gpu(self) -> Gpu:
        return self.ran.gpu

    @property
    def engine(self) -> str:
        """Method of the answer: "program" for a run, "laws" for formulas for the requests."""
        return self.ran.engine

    @property
    def completes(self) -> bool:
        """True if the run completed on the card, beside a CUDA context of the assumed size."""
        return not self.ran.is_out_of_memory

    @property
    def runs_on_loan(self) -> bool:
        """True if the program completes only with host memory lent by the driver."""
        return self.lent is not None and not self.lent.ooms

    @property
    def needed_bytes(self) -> int | None:
        """Bytes that suffice for the task, without the CUDA context; None if unknown.

        If the task completes, this is its peak of reserved memory. Otherwise it is the memory of
        the smallest card on which it fits or, if that is unknown, the peak without a memory limit.
        """
        if self.completes:
            return self.ran.peak_reserved_bytes
        if self.least_room is None and self.unlimited is not None:
            return self.unlimited.peak_reserved_bytes
        return self.least_room

    @property
    def failure(self) -> Failure | None:
        """Error that ended the program, or None if it completed."""
        return self.ran.failure

    @property
    def room_bytes(self) -> int:
        """Bytes of the card that are available to PyTorch's allocator."""
        return self.gpu.room

    @property
    def spare_bytes(self) -> int:
        """Bytes available to PyTorch's allocator minus the bytes that the task needs.

        The number is negative if the task does not fit.
        """
        return self.room_bytes - (self.needed_bytes or self.ran.peak_reserved_bytes)

    @property
    def process_bytes(self) -> tuple[int, int]:
        """Range (low, high) of the card memory that the process uses at its peak, in bytes.

        It includes the CUDA context and, if the user's release is known to differ from the law's,
        `drift`. If `fits` is True, `high` is at most the card's memory.
        """
        low, high = context_range(self.gpu)
        least = most = self.needed_bytes or self.ran.peak_reserved_bytes
        if self.drift is not None and self.drift.is_known:
            least, most = self.drift.of(least)
        high += most
        return least + low, min(high, self.gpu.memory) if self.fits else high

    def headline(self) -> str:
        name, needed = self.gpu.name, self.needed_bytes
        if self.fits:
            return f"fits {name} with {format_size(self.spare_bytes)} to spare"
        if self.fits is None:
            used = format_range(*self.process_bytes)
            return f"may not fit {name}: {used} of {format_size(self.gpu.memory)}"
        if needed is None:
            return f"does not fit {name}"
        short = format_size(max(-self.spare_bytes, 0))
        if self.lent is not None and self.lent.spill is not None and self.runs_on_loan:
            spilled = format_size(self.lent.spill.most_bytes)
            return f"runs on {name} with {spilled} of the host's memory, slower; does not fit alone"
        return f"does not fit {name}: {format_size(needed)} are needed, {short} more than it has"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        yield "reserved at the peak", format_size(self.ran.peak_reserved_bytes)
        yield "allocated at the peak", format_size(self.ran.peak_allocated_bytes)
        low, high = map(format_size, self.process_bytes)
        yield "the process", f"{low} to {high}"
