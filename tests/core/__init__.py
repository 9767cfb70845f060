"""Tests of the exact core, one file for each topic, written from the rules."""
