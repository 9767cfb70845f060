"""Fuzzing of every reader: `make fuzz` and docs/security.md."""
