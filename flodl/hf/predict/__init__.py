"""Predict labels, entities, answers and masked tokens from texts."""
