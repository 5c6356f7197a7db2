"""Average tensors over the ranks: which ones, with which weights, over which backend."""
