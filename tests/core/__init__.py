"""Stories about the exact core, one file a noun, written from the rules."""
