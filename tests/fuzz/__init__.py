"""Fuzzing of every reader: `make fuzz` and docs/evidence/security.md."""
