"""Recordings in the formats of other tools: what each keeps, and that they read it."""
