"""What watches a training: checkpoints, guards, the trace, acts, reports, the best model."""
