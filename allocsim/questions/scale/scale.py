"""A program at sizes that it was never recorded at.

Rule: nothing is extrapolated but the requests (`law.py`); what PyTorch reserves for them is
replayed, request by request.  That a size fits is one replay, that a larger one does not is
another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from allocsim.display import Shown
from allocsim.engine import Setting, SimulatedOom, bytes_of, prepare
from allocsim.errors import ConfigError, RecordingError
from allocsim.measures import Code, code_at
from allocsim.questions.scale.growing import Growing, growing_laws
from allocsim.questions.scale.law import Law, Sample, laws_of, typed
from allocsim.questions.scale.play import drive_at, plan_at
from allocsim.questions.scale.program import program_of
from allocsim.questions.scale.proof import Check, checks_of
from allocsim.trace import Recording
from allocsim.units import format_size

__all__ = ["Frontier", "Largest", "Scaled", "Scaling", "scaling_of"]

_MOST = 1 << 24
"""A size that is not looked beyond."""


@dataclass(frozen=True, slots=True, repr=False)
class Scaled(Shown):
    """The program at one size.

    at: the sizes.
    device_memory: bytes of the device, None for one without end.
    peak_reserved_bytes, peak_allocated_bytes: up to the error, if there is one.
    oom: the first request without an answer, `code` its line.
    is_between: whether the size lies between recorded ones.
    rounded: requests that the law gives no whole number of bytes, which were rounded up.
    """

    at: Mapping[str, int]
    conf: str
    device_memory: int | None
    peak_reserved_bytes: int
    peak_allocated_bytes: int
    num_alloc_retries: int
    oom: SimulatedOom | None
    code: Code | None
    is_between: bool
    rounded: int

    @property
    def fits(self) -> bool:
        """Whether every request was answered."""
        return self.oom is None

    @property
    def text(self) -> str:
        """The sizes, as they are typed."""
        return typed(self.at)

    def headline(self) -> str:
        """Whether it fits, and its peak."""
        when = "at the peak" if self.fits else "when it runs out of memory"
        return f"{self.text}: {format_size(self.peak_reserved_bytes)} reserved {when}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """Memory."""
        yield "reserved at the peak", format_size(self.peak_reserved_bytes)
        yield "allocated at the peak", format_size(self.peak_allocated_bytes)


@dataclass(frozen=True, slots=True)
class Largest:
    """The largest value of the size `name` that fits, and the next, which does not.

    fitting: None if not even the least does, which is 1, or the fewest layers that are recorded.
    """

    name: str
    fitting: Scaled | None
    failing: Scaled


@dataclass(frozen=True, slots=True)
class Frontier:
    """The largest value of the size `name` at each value of the size `other`, ascending."""

    name: str
    other: str
    rows: tuple[tuple[int, Largest], ...]

    @property
    def fits(self) -> bool:
        """Whether any value fits anywhere."""
        return any(found.fitting is not None for _, found in self.rows)


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Scaling(Shown):
    """What recordings of a program at a few sizes tell of others.

    checks: the recordings that the law predicted, one at least for a proof.
    """

    law: Law | Growing
    checks: tuple[Check, ...]

    @property
    def torch_version(self) -> str:
        """The release that is modelled."""
        return self.law.program.prepared.release.version

    @property
    def context_memory(self) -> int:
        """Bytes of a device that a replay counts as the CUDA context's."""
        return self.law.program.prepared.context_memory

    def headline(self) -> str:
        """The sizes, and whether the law is proved."""
        sizes = ", ".join(sample.text for sample in self.law.samples)
        proved = f"checked by {len(self.checks)}" if self.checks else "not checked"
        return f"from {sizes}: {proved}"

    def figures_shown(self) -> Iterator[tuple[str, str]]:
        """The recordings."""
        for sample in (*self.law.samples, *self.law.checks):
            yield sample.text, sample.path

    def at(
        self,
        sizes: Mapping[str, int],
        *,
        conf: str | None = None,
        device_memory: int | str | None = None,
    ) -> Scaled:
        """The program at `sizes`, on a device of so many bytes, or "24GiB" (None: no end).

        conf: an option string instead of the recorded one.
        Raises ConfigError for sizes that the law cannot tell, and a setting that the release
        refuses.
        """
        whole, memory = self.law.complete(sizes), bytes_of(device_memory)
        law = self.law.settled(whole)
        prepared = law.program.prepared
        setting = prepared.recorded if conf is None else Setting(conf)
        requested = law.requested_at(whole)
        drive = drive_at(law, plan_at(law, requested), setting, memory)
        stats = drive.allocator.statistics()
        oom = drive.ooms[0] if drive.ooms else None
        return Scaled(
            at=whole,
            conf=setting.conf,
            device_memory=memory,
            peak_reserved_bytes=stats.all.reserved_bytes.peak,
            peak_allocated_bytes=stats.all.allocated_bytes.peak,
            num_alloc_retries=stats.num_alloc_retries,
            oom=oom,
            code=None if oom is None else code_at(prepared.trace, oom.entry),
            is_between=self.law.covers(whole),
            rounded=requested.rounded,
        )

    def largest(
        self,
        name: str,
        sizes: Mapping[str, int],
        device_memory: int | str,
        *,
        conf: str | None = None,
        watch: Callable[[str], object] | None = None,
    ) -> Largest:
        """The largest value of the size `name` at which the program fits on a device.

        sizes: the other ones.  watch: called with each size before it is tried.
        More of a size is taken never to fit where less did not.
        Raises ConfigError as `at`, and if nothing grows with the size.
        """
        if name not in self.law.varied:
            known = ", ".join(self.law.varied)
            raise ConfigError(f"{name} is the same in every recording; what varies is {known}")

        least, stride = self.law.domain(name)

        def tried(count: int) -> Scaled:
            value = least + (count - 1) * stride
            if watch is not None:
                watch(f"{name}={value}")
            return self.at({**sizes, name: value}, conf=conf, device_memory=device_memory)

        guess = self._guessed(name, sizes, device_memory, conf)
        count, step = max((guess - least) // stride + 1, 1), 1
        low, high = 0, _MOST
        fitting: Scaled | None = None
        failing: Scaled | None = None
        while failing is None or high - low > 1:
            found = tried(count)
            if found.fits:
                low, fitting = count, found
            else:
                high, failing = count, found
            if failing is not None and fitting is not None:
                count = (low + high) // 2
            else:  # further and further from the guess
                count = low + step if failing is None else max(high - step, 1)
                step *= 2
            if count > _MOST:
                raise ConfigError(f"{name} makes no difference to the memory: {low:,} fits as well")
        return Largest(name, fitting, failing)

    def frontier(
        self,
        name: str,
        other: str,
        values: Sequence[int],
        sizes: Mapping[str, int],
        device_memory: int | str,
        *,
        conf: str | None = None,
        watch: Callable[[str], object] | None = None,
    ) -> Frontier:
        """`largest` of the size `name` for each of `values` of the size `other`, ascending.

        sizes: the rest.  Raises ConfigError as `largest`, and if the two sizes are one.
        """
        if name == other:
            raise ConfigError(f"{name} and {other} are one size; expected two")
        return Frontier(
            name,
            other,
            tuple(
                (
                    value,
                    self.largest(
                        name, {**sizes, other: value}, device_memory, conf=conf, watch=watch
                    ),
                )
                for value in sorted(set(values))
            ),
        )

    def _guessed(
        self, name: str, sizes: Mapping[str, int], device_memory: int | str, conf: str | None
    ) -> int:
        """About where the device is full, if the peak grows evenly with the size."""
        values = sorted({sample.at[name] for sample in self.law.samples})[:2]
        near, far = (
            self.at({**sizes, name: value}, conf=conf).peak_reserved_bytes for value in values
        )
        room = (bytes_of(device_memory) or 0) - self.context_memory - near
        if far <= near:
            return values[0]
        guess = values[0] + room * (values[1] - values[0]) // (far - near)
        return min(max(guess, 1), _MOST)


def scaling_of(
    runs: Sequence[tuple[Recording, Mapping[str, int]]],
    *,
    device: int | None = None,
    torch_version: str | None = None,
) -> Scaling:
    """What recordings tell of other sizes; each is given with its own, as {"batch": 2}.

    device: of each recording (default: the only one).  torch_version: as for `replay`.
    Raises ConfigError if they are too few or are told apart by other names, RecordingError if they
    are not of one program, or one does not follow the law of the others.
    """
    samples = []
    for recording, at in runs:
        (prepared,) = prepare(recording, recording.only_device(device).device, torch_version)
        samples.append(Sample(program_of(prepared), dict(at)))
    refuted: RecordingError | None = None
    for law in _laws(samples):
        try:
            return Scaling(law, checks_of(law))
        except RecordingError as error:
            refuted = refuted or error
    assert refuted is not None
    raise refuted


def _laws(samples: Sequence[Sample]) -> Iterator[Law | Growing]:
    """Of programs that are one at every size, else of one that grows."""
    is_one = all(samples[0].program.first_difference(each.program) is None for each in samples)
    grows = False
    if not is_one and all(set(each.at) == set(samples[0].at) for each in samples):
        for growing in growing_laws(samples):
            grows = True
            yield growing
    if not grows:
        yield from laws_of(samples)
