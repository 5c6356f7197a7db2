from .attached import LossContext as LossContext
from .builder import (
    FlowBuilder as FlowBuilder,
    LoopBuilder as LoopBuilder,
    MapBuilder as MapBuilder,
)
from .freezing import freeze_params as freeze_params, unfreeze_params as unfreeze_params
from .graph import Graph as Graph
from .modules import (
    Lambda as Lambda,
    LoopBody as LoopBody,
    NamedInputModule as NamedInputModule,
    TraceEmit as TraceEmit,
    forward_via_step as forward_via_step,
    modules as modules,
)
from .observe import Reduce as Reduce
from .paths import PathKind as PathKind
from .persist import ModelSnapshot as ModelSnapshot
from .profile import (
    LevelTiming as LevelTiming,
    NodeTiming as NodeTiming,
    Profile as Profile,
)
from .routing import (
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
from .topology import MergeOp as MergeOp
from .trend import Trend as Trend, TrendGroup as TrendGroup
