"""The report: one HTML file that opens offline."""

from allocsim.report.html.html_report import html_report

__all__ = ["html_report"]
