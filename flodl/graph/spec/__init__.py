"""Architectures as JSON: describe a graph without its weights, and make it from that again."""

from flodl.graph.spec.mixin import Specified as Specified
