"""A loop of the user's own in many ranks: shared batches, or windows with accumulated gradients."""
