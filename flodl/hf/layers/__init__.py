"""Layers that several families share, and how tokens lie in a batch."""
