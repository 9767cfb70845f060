"""HTML pages: self-contained files that open offline.

Names are imported on first use, so a command loads only the page that it writes.
"""

from typing import TYPE_CHECKING

from allocsim._lazy import lazily

if TYPE_CHECKING:
    from allocsim.report.html.embedding import Packer
    from allocsim.report.html.html_report import DevicePage, html_report, still_report
    from allocsim.report.html.markup import json_text, stylesheet
    from allocsim.report.html.static_pages import compare_page, ranks_page

__all__ = [
    "DevicePage", "Packer", "compare_page", "html_report", "json_text", "ranks_page",
    "still_report", "stylesheet",
]  # fmt: skip

_HOMES = {
    "embedding": "Packer",
    "html_report": "DevicePage html_report still_report",
    "markup": "json_text stylesheet",
    "static_pages": "compare_page ranks_page",
}

__getattr__ = lazily(globals(), _HOMES)
