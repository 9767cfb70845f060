"""Tests of the command line: output, streams and exit codes."""
