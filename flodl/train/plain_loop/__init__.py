"""Run the user's own loop on several ranks: shared batches, or windows that sum gradients."""
