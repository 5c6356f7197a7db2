"""Training on several ranks: launching, sharing, averaging."""
