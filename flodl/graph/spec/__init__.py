"""Architectures as JSON: a graph described without its weights, and made again from that."""

from flodl.graph.spec.mixin import Specified as Specified
