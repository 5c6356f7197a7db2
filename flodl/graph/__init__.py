"""Graphs: describe a network with FlowBuilder, run it as a torch module."""

from flodl.graph.builder import FlowBuilder as FlowBuilder
from flodl.graph.graph import Graph as Graph
from flodl.graph.modules import Lambda as Lambda
from flodl.graph.modules import modules as modules
from flodl.graph.topology import MergeOp as MergeOp
