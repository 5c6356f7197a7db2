"""Guards of a training: go back to a good state after a spike, leave its batches out, go on."""
