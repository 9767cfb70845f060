"""Result of `allocsim scale`: memory of a program at sizes not recorded, as text and as JSON."""

from __future__ import annotations

from typing import Any

from allocsim.fitting.scale import (
    Growing,
    LargestSize,
    LawCheck,
    Scaled,
    ScaleFrontier,
    Scaling,
    ScalingLaw,
)
from allocsim.report.explain import code_text
from allocsim.report.layout import exact_size, fields, plural, row, table
from allocsim.units import format_size

Prediction = Scaled | LargestSize | ScaleFrontier


def text(scaling: Scaling, found: Prediction) -> str:
    """Return the text of `allocsim scale`.

    found: memory at the sizes given by --to; or for the size named by --find, the largest value
        that fits the device.
    """
    if isinstance(found, LargestSize):
        return _largest_text(scaling, found)
    if isinstance(found, ScaleFrontier):
        return _frontier_text(scaling, found)
    peak = format_size(found.peak_reserved_bytes)
    if found.device_memory is None:
        verdict = f"{found.text} reserves {peak} at the peak"
    elif found.fits:
        verdict = f"{found.text} fits {exact_size(found.device_memory)}"
    else:
        verdict = f"{found.text} runs out of memory on {exact_size(found.device_memory)}"
    lines = row("Verdict", verdict) + _fails(found) + _memory(found)
    return "\n".join([*lines, *_evidence_rows(scaling, found), ""])


def _largest_text(scaling: Scaling, found: LargestSize) -> str:
    device = exact_size(found.failing.device_memory or 0)
    if found.fitting is None:
        verdict = f"not even {found.failing.text} fits {device}"
    else:
        verdict = (
            f"{found.fitting.text} is the largest that fits {device}; {found.failing.text} "
            "runs out of memory"
        )
    lines = row("Verdict", verdict)
    if found.fitting is not None:
        lines += _memory(found.fitting)
    lines += _fails(found.failing)
    return "\n".join([*lines, *_evidence_rows(scaling, found.fitting or found.failing), ""])


def _frontier_text(scaling: Scaling, found: ScaleFrontier) -> str:
    device = exact_size(found.rows[0][1].failing.device_memory or 0)
    at = [f"{_value(row)} at {found.other}={value:,}" for value, row in found.rows]
    lines = row("Verdict", f"the largest {found.name} that fits {device}: {', '.join(at)}")
    rows: list[tuple[str, ...]] = [(found.other, found.name, "reserved", "next value")]
    for value, each in found.rows:
        peak = "" if each.fitting is None else format_size(each.fitting.peak_reserved_bytes)
        following = f"{each.failing.at[found.name]:,} runs out of memory"
        rows.append((f"{value:,}", _value(each), peak, following))
    lines += ["", *table(rows, (12, 12, 14, 26))]
    founds = [each.fitting or each.failing for _, each in found.rows]
    return "\n".join([*lines, *_evidence_rows(scaling, *founds), ""])


def _value(found: LargestSize) -> str:
    return "none" if found.fitting is None else f"{found.fitting.at[found.name]:,}"


def _fails(found: Scaled) -> list[str]:
    if found.oom is None:
        return []
    tried = format_size(found.oom.tried_bytes or found.oom.rounded_bytes)
    by = f", by {code_text(found.code)}" if found.code is not None else ""
    return row("Fails", f"{found.text} at a request that needs {tried}{by}")


def _memory(found: Scaled) -> list[str]:
    when = "at the peak" if found.fits else "at most before the failure"
    memory = f"{exact_size(found.peak_reserved_bytes)} reserved {when}, "
    memory += f"{format_size(found.peak_allocated_bytes)} allocated"
    if found.num_alloc_retries:
        memory += f"; {plural(found.num_alloc_retries, 'retry', 'retries')}"
    return row("Memory", memory)


def _evidence_rows(scaling: Scaling, *founds: Scaled) -> list[str]:
    law = scaling.law
    lines = [""]
    for sample in law.samples:
        lines += row("From", f"{sample.text}: {sample.path}")
    lines += _law(scaling)
    if rounded := max(found.rounded for found in founds):
        few = plural(rounded, "request")
        lines += row("Rounded", f"{few} to the next byte, where the law gives a fraction")
    for check in scaling.checks:
        lines += row("Checked", _checked(check))
    if not scaling.checks:
        lines += row("Not proved", "no further recording checks the law; add one at another size")
    if beyond := [found.text for found in founds if not found.is_between]:
        verb = "is" if len(beyond) == 1 else "are"
        text = f"{'; '.join(beyond)} {verb} outside the recorded sizes: {_beyond(law)}"
        lines += row("Beyond", text)
    if law.program.prepared.start:
        lines += row(
            "Start", "memory in use before the recording began is assumed equal at every size"
        )
    return lines


def _law(scaling: Scaling) -> list[str]:
    law = scaling.law
    squared = [name for name, degree in law.degrees.items() if degree > 1]
    shape = f"with the square of {' and '.join(squared)}" if squared else "affine in each size"
    lines = row("Law", f"{len(law.program.size):,} requests, each {shape}")
    if isinstance(law, Growing):
        growth = law.growths[0]
        more = "one more" if law.step == 1 else f"each {law.step} more"
        where = plural(len(growth.parts), "place")
        few = plural(growth.more_requests, "request")
        what = f"{more} of {law.name} adds {few}, copies of their neighbours in {where}"
        lines += row("Grows", what)
    return lines


def _beyond(law: ScalingLaw | Growing) -> str:
    kernels = (
        "at some sizes PyTorch's kernels make other requests (two-pass reductions, sorts), which "
        "the law does not contain; a recording nearer to that size would show them"
    )
    if not isinstance(law, Growing):
        return kernels
    copies = f"each step of {law.name} is assumed to repeat the last recorded one"
    return f"{copies}; {kernels}" if law.others.varied else copies


def _checked(check: LawCheck) -> str:
    missed = ""
    if check.missed:
        miss = format_size(check.largest_miss)
        missed = f"; {plural(check.missed, 'request')} differ from the law, by at most {miss}"
    peak = format_size(check.peak_reserved_bytes)
    return f"{check.text}: {peak} reserved at the peak, as predicted{missed} ({check.path})"


def document(scaling: Scaling, found: Prediction) -> dict[str, Any]:
    law = scaling.law
    grows = None
    if isinstance(law, Growing):
        grows = {
            "name": law.name,
            "step": law.step,
            "requests": law.growths[0].more_requests,
            "places": len(law.growths[0].parts),
        }
    if isinstance(found, Scaled):
        answer = _scaled(found)
    elif isinstance(found, LargestSize):
        answer = {"find": found.name, **_largest(found)}
    else:
        rows = [{"at": {found.other: n}, **_largest(each)} for n, each in found.rows]
        answer = {"find": [found.name, found.other], "frontier": rows}
    return {
        "torch_version": scaling.torch_version,
        "samples": [{"path": each.path, "at": dict(each.at)} for each in law.samples],
        "checks": [
            fields(each, "path at=text peak_reserved_bytes requests_missed=missed")
            | {"largest_miss_bytes": each.largest_miss}
            for each in scaling.checks
        ],
        "is_proved": bool(scaling.checks),
        "requests": len(law.program.size),
        "grows": grows,
        **answer,
    }


def _largest(found: LargestSize) -> dict[str, Any]:
    fitting = found.fitting
    return {
        "largest": None if fitting is None else fitting.at[found.name],
        "fitting": None if fitting is None else _scaled(fitting),
        "failing": _scaled(found.failing),
    }


def _scaled(found: Scaled) -> dict[str, Any]:
    keys = (
        "conf device_memory fits is_between requests_rounded=rounded peak_reserved_bytes "
        "peak_allocated_bytes num_alloc_retries fails_at=oom.entry tried_bytes=oom.tried_bytes"
    )
    return {"at": dict(found.at), **fields(found, keys)}
