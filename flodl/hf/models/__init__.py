"""The networks as graphs: six encoders and their heads."""

from flodl.hf.models.building import build_graph as build_graph
from flodl.hf.models.building import fresh as fresh
from flodl.hf.models.building import tie_words as tie_words
