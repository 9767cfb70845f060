"""The report: one HTML file that opens offline."""

from allocsim.report.html.compare_page import compare_page
from allocsim.report.html.html_report import DevicePage, html_report
from allocsim.report.html.markup import json_text
from allocsim.report.html.packed_columns import Packer
from allocsim.report.html.ranks_page import ranks_page
from allocsim.report.html.still_report import still_report

__all__ = [
    "DevicePage", "Packer", "compare_page", "html_report", "json_text", "ranks_page",
    "still_report",
]  # fmt: skip
