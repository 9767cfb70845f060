"""A package a question; siblings do not know each other."""

__all__ = []
