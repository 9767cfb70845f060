"""Tests of allocsim.capture."""
