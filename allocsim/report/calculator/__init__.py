"""Calculator page: one HTML file with embedded laws that works offline."""

from allocsim.report.calculator.calculator_page import calculator_page
from allocsim.report.calculator.packed_laws import PackedLaws, packed_laws

__all__ = ["PackedLaws", "calculator_page", "packed_laws"]
