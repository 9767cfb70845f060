"""Numbers from runs."""
