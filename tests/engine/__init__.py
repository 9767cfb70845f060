"""Stories about replays."""
