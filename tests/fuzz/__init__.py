"""Every reader on inputs that nobody meant: `make fuzz` and docs/security.md."""
