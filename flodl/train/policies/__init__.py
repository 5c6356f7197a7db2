"""The order of the batches, and when ranks average: one loop per policy."""
