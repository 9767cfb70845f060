"""Memory that serving engines print when they start, compared with predictions."""
