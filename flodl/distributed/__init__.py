"""Training in many ranks: launching, sharing, averaging."""
