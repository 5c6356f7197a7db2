"""The networks as graphs: seven encoders and their heads."""

from flodl.hf.models.building import (
    build_graph as build_graph,
    fresh as fresh,
    tie_words as tie_words,
)
