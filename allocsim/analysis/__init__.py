"""Analyses of recordings; each module or package is for one command and imports no other."""

__all__ = []
