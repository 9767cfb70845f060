"""Compare replays, what-if replays and the phantom GPU with recordings of a real GPU."""
