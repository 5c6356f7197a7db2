"""Who trains which batches next: pure functions of what all ranks know."""
