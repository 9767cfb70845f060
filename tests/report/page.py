"""Parsed report page, for tests."""

from __future__ import annotations

import base64
import gzip
import json
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import numpy as np

from allocsim.recording import Recording, trimmed


def of_two_devices(recording: Recording) -> Recording:
    """Return the first half of a device as device 0, and all of it as device 1."""
    (trace,) = recording.devices
    half = trimmed(trace, 0, len(trace) // 2)
    return replace(recording, devices=(half, replace(trace, device=1)))


VOID = {"meta", "link", "input", "br", "img", "hr"}
TYPES = {"int8": "<i1", "int16": "<i2", "int32": "<i4", "float64": "<f8"}


class Page(HTMLParser):
    """Parsed page: ids, links, tables, scripts, and wrong nesting."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[tuple[str, dict[str, str | None]]] = []
        self.wrong: list[str] = []
        self.ids: list[str] = []
        self.asked: list[str] = []
        self.tables: list[list[list[str]]] = []
        self.scripts: dict[str, str] = {}
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids += [found["id"] or ""] if "id" in found else []
        self.asked += [
            found[name] or "" for name in ("src", "href", "action", "data") if name in found
        ]
        if tag not in VOID:
            self.open.append((tag, found))
        if tag == "table":
            self.tables.append([])
        if tag == "tr":
            self.tables[-1].append([])
        if tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag in VOID:
            return
        if not self.open or self.open.pop()[0] != tag:
            self.wrong.append(tag)

    def handle_data(self, data: str) -> None:
        tag, attrs = self.open[-1] if self.open else ("", {})
        if tag == "script":
            self.scripts[attrs.get("id") or "script"] = data
            return
        if tag == "style":
            return
        self.words += data
        if any(name in ("td", "th") for name, _ in self.open):
            self.tables[-1][-1][-1] += data

    def about(self, device: int = 0) -> dict[str, Any]:
        """Return the dictionary that describes the embedded columns of a device."""
        found: dict[str, Any] = json.loads(self.scripts[f"about-{device}"])
        return found

    def columns(self, device: int = 0) -> dict[str, np.ndarray[Any, Any]]:
        """Return the embedded columns of a device, decoded as the page's script does."""
        about = self.about(device)
        data = gzip.decompress(base64.b64decode(self.scripts[f"columns-{device}"]))
        return {
            name: np.cumsum(np.frombuffer(data, TYPES[kind], length, offset).astype(np.float64))
            for name, (kind, length, offset) in about["columns"].items()
        }
