"""External annotations of a snapshot, such as an optimizer step.

allocsim keeps the annotations unchanged.  PyTorch writes two annotations for each annotated range,
START and END (semantics 6.5).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from allocsim.recording.fields import INT32_MAX, INT64_MAX, Fields

__all__ = ["Annotation", "read_annotations"]


@dataclass(frozen=True, slots=True)
class Annotation:
    """Begin or end of an annotated range.

    stage: "START" or "END".
    time_us: microseconds, by the same clock as the times of entries.
    """

    name: str
    stage: str
    device: int
    time_us: int

    def plain(self) -> dict[str, object]:
        """Return the annotation as a snapshot's dictionary."""
        return asdict(self)


def read_annotations(top: Fields, size: int) -> tuple[Annotation, ...]:
    """Return the external annotations of a snapshot; an empty tuple if the file has none.

    top: dictionary of the snapshot.
    size: bytes of the file, which limit the number of annotations.
    """
    if "external_annotations" not in top:
        return ()
    values = top.items("external_annotations")
    if len(values) > size:
        top.wrong("external_annotations", values, "no more than the file's size can hold")
    found = []
    for index, value in enumerate(values):
        row = Fields(top.path, f"external_annotations[{index}]", value)
        name, stage = row.text("name"), row.text("stage")
        device, time = row.integer("device", -1, INT32_MAX), row.integer("time_us", 0, INT64_MAX)
        found.append(Annotation(name, stage, device, time))
    return tuple(found)
