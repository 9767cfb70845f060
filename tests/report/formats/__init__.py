"""Tests of recordings in the formats of other tools."""
