"""The report: one HTML file that opens offline."""

from allocsim.report.html.html_report import DevicePage, html_report
from allocsim.report.html.still_report import still_report

__all__ = ["DevicePage", "html_report", "still_report"]
