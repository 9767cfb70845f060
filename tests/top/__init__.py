"""Owners of memory, compared with counts by the programs themselves."""
