"""Tests of the comparison with recordings of a real GPU, and of the command that records one."""
