"""Rewrites: nodes of a graph computed in a faster way, equal within rounding."""
