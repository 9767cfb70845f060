"""Fast reading of pickled snapshots: from bytes to columns without row objects."""
