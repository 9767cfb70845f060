"""The phantom GPU: scripts, the stub's books, the wheel cache, and real releases if cached."""
