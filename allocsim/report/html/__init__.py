"""The report: one HTML file that opens offline."""

from allocsim.report.html.html_report import DevicePage, html_report
from allocsim.report.html.markup import json_text
from allocsim.report.html.packed_columns import Packer
from allocsim.report.html.still_report import still_report

__all__ = ["DevicePage", "Packer", "html_report", "json_text", "still_report"]
