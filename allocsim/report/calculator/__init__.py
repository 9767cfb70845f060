"""Calculator page: one HTML file with embedded laws that works offline."""

from allocsim.report.calculator.calculator_page import PackedLaws, calculator_page, packed_laws

__all__ = ["PackedLaws", "calculator_page", "packed_laws"]
