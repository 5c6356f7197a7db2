"""Graphs as plain values, and what they mean: a second, slow reading of the builder."""
