"""Reports: every line short enough, every word where it belongs."""
