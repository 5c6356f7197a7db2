"""Plan which rank trains which batches next: pure functions of values that all ranks know."""
