"""The comparison with recordings of a real card, and the command that measures one."""
