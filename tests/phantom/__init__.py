"""Phantom GPU: op scripts, the stub's bookkeeping, the wheel cache, and cached releases."""
