"""Memory sizes in the log of a server or a table of PyTorch, as text and as JSON.

Rule: reasons why a server refused to start come first, each with the change that helps. Sizes are
shown as the log prints them, and are never added up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allocsim._repr import printable
from allocsim.report.answer import Answer, Part, answer_of
from allocsim.report.layout import row

if TYPE_CHECKING:
    from allocsim.recording import LogFigure, LogFigures

_SHOWN = 18
_SHOWN_REFUSALS = 3
_ADVICE = {
    "memory_summary": "reserved minus allocated is idle; a recording shows what keeps it: allocsim "
    "record, or torch.cuda.memory._record_memory_history()",
    "vllm": "allocsim fit MODEL --server vllm --gpu NAME --log FILE uses these "
    "figures instead of assumptions",
    "sglang": "allocsim fit MODEL --server sglang --gpu NAME --log FILE uses these "
    "figures instead of assumptions",
    "llama.cpp": "allocsim fit MODEL.gguf --server llama.cpp --gpu NAME --log FILE uses the "
    "compute buffer instead of an assumption",
}


def text(found: LogFigures) -> str:
    lines = _lines(found, found.figures)
    lines += row("Read", "of each size the last line about its device, as the log prints it")
    return "\n".join(lines) + "\n"


def screen(found: LogFigures) -> Answer:
    refusals = found.refusals[:_SHOWN_REFUSALS]
    shown = found.figures[: _SHOWN - 3 * len(refusals)]
    lines = _lines(replace(found, refusals=refusals), shown)
    if (hidden := len(found.figures) - len(shown)) > 0:
        lines += row("", f"({hidden} more; -v shows them)")
    return answer_of([Part(lines)])


def _lines(found: LogFigures, figures: tuple[LogFigure, ...]) -> list[str]:
    lines = []
    for refusal in found.refusals:
        lines += row("Verdict", f"did not start: {refusal.what} (line {refusal.line:,})")
        lines += row("Helps", refusal.helps)
    lines += row("Text", f"{found.what} {found.version}".rstrip())
    label = "Figures"
    for figure in figures:
        lines += row(label, _line(figure))
        label = ""
    return lines + row("Advice", _ADVICE[found.kind])


def _line(figure: LogFigure) -> str:
    device = f" of {printable(figure.device)}" if figure.device else ""
    return f"{figure} {figure.label}{device}, line {figure.line:,}"


def document(found: LogFigures) -> dict[str, Any]:
    figures = [
        {
            "name": each.name,
            "label": each.label,
            "value": int(each.value) if each.value == int(each.value) else each.value,
            "device": each.device,
            "line": each.line,
        }
        for each in found.figures
    ]
    refusals = [
        {"what": each.what, "helps": each.helps, "line": each.line} for each in found.refusals
    ]
    known = {"kind": found.kind, "what": found.what, "version": found.version or None}
    return {"log": {**known, "refusals": refusals, "figures": figures}}
