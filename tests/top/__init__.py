"""Whose memory it is, beside what programs counted themselves."""
