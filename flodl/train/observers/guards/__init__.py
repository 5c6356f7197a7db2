"""Guards of a training: go back to a good state after a spike, and leave its batches out."""
