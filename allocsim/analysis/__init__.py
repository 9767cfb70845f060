"""Analyses of recordings: one package for each command; the packages are independent."""

__all__ = []
