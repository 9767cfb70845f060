"""Page in a real browser, for tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

__all__ = ["LONGEST_WAIT", "Opened"]

LONGEST_WAIT = 60_000
"""Timeout in milliseconds."""


class Opened:
    """A loaded page with its requests and errors."""

    def __init__(self, browser: Any, file: Path, before: str = "", **options: Any) -> None:
        self.requests: list[str] = []
        self.errors: list[str] = []
        fragment = options.pop("fragment", "")
        options.setdefault("viewport", {"width": 1280, "height": 900})
        self.page = browser.new_page(**options)
        self.page.add_init_script(before)
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.on("console", self._log)
        began = time.monotonic()
        self.page.goto(file.as_uri() + fragment)
        if options.get("java_script_enabled", True):
            self.page.wait_for_selector("body[data-ready]", timeout=LONGEST_WAIT)
        self.seconds = time.monotonic() - began

    def _log(self, message: Any) -> None:
        if message.type == "error":
            self.errors.append(message.text)

    def text(self, selector: str) -> str:
        return str(self.page.inner_text(selector))

    def settle(self) -> None:
        """Wait until the next frame has been drawn."""
        self.page.evaluate(
            "new Promise(d => requestAnimationFrame(() => requestAnimationFrame(d)))"
        )

    def until(self, script: str) -> None:
        """Wait until `script` returns true."""
        end = time.monotonic() + 5
        while not self.run(script):
            assert time.monotonic() < end, script
            self.page.wait_for_timeout(50)

    def run(self, script: str) -> Any:
        return self.page.evaluate(script)

    def close(self) -> None:
        """Close the page; fail if there was an error or a request."""
        assert self.errors == []
        assert len(self.requests) == 1
        self.page.close()

    def spot(self, selector: str, x: float, y: float) -> tuple[float, float]:
        """Return window coordinates of a point at shares `x` and `y` of an element's size."""
        self.page.locator(selector).scroll_into_view_if_needed()
        box = self.page.locator(selector).bounding_box()
        return box["x"] + box["width"] * x, box["y"] + box["height"] * y
