"""Graphs: describe a network with FlowBuilder, then run it as a torch module."""

from flodl.graph.attached import LossContext as LossContext
from flodl.graph.builder import (
    FlowBuilder as FlowBuilder,
    LoopBuilder as LoopBuilder,
    MapBuilder as MapBuilder,
)
from flodl.graph.capture import Capturable as Capturable
from flodl.graph.freezing import freeze_params as freeze_params, unfreeze_params as unfreeze_params
from flodl.graph.graph import Graph as Graph
from flodl.graph.modules import (
    Lambda as Lambda,
    LoopBody as LoopBody,
    NamedInputModule as NamedInputModule,
    TraceEmit as TraceEmit,
    forward_via_step as forward_via_step,
    modules as modules,
)
from flodl.graph.observe import Reduce as Reduce
from flodl.graph.paths import PathKind as PathKind
from flodl.graph.persist import ModelSnapshot as ModelSnapshot
from flodl.graph.profile import (
    LevelTiming as LevelTiming,
    NodeTiming as NodeTiming,
    Profile as Profile,
)
from flodl.graph.routing import (
    ArgmaxSelector as ArgmaxSelector,
    BatchArgmaxSelector as BatchArgmaxSelector,
    FixedSelector as FixedSelector,
    LearnedHalt as LearnedHalt,
    Reshape as Reshape,
    SigmoidRouter as SigmoidRouter,
    SoftmaxRouter as SoftmaxRouter,
    StateAdd as StateAdd,
    ThresholdHalt as ThresholdHalt,
)
from flodl.graph.topology import MergeOp as MergeOp
from flodl.graph.trend import Trend as Trend, TrendGroup as TrendGroup
