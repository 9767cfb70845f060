"""Findings of `allocsim lint`, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from allocsim.analysis.lint import Finding, Lint
from allocsim.report.layout import fields, row, rows


def text(found: Lint) -> str:
    lines = row("Verdict", found.headline())
    if found.path:
        lines += row("Recording", found.path)
    lines += row("Release", found.release_note)
    if found.conf is not None:
        lines += row("Settings", found.conf or "PyTorch's defaults")
    if found.asked is not None:
        lines += row("--conf", found.asked or "no options")
    for finding in found.findings:
        lines += ["", *rows(finding.severity.capitalize(), _about(finding))]
    return "\n".join(lines) + "\n"


def _about(finding: Finding) -> Iterator[str]:
    where = [f"device {finding.device}"] if finding.device is not None else []
    where += [f"entry {finding.entry:,}"] if finding.entry is not None else []
    yield f"{', '.join(where)}: {finding.text}" if where else finding.text
    if finding.entry is not None:
        yield f"the entry: {finding.value}"
    yield f"Meaning: {finding.meaning}"


def document(found: Lint) -> dict[str, Any]:
    return {
        "file": found.path or None,
        **fields(found, "torch_version release_note conf asked passed"),
        "errors": found.count("error"),
        "warnings": found.count("warning"),
        "notes": found.count("note"),
        "findings": [asdict(finding) for finding in found.findings],
    }
