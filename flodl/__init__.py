"""flodl: graphs as data flow, and training that survives, on PyTorch."""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError(
        "flodl needs PyTorch, which is not installed: pip install 'flodl[train]'"
    ) from None

from flodl.checkpoint import LoadReport as LoadReport
from flodl.checkpoint import MigrateReport as MigrateReport
from flodl.checkpoint import checkpoint_keys as checkpoint_keys
from flodl.checkpoint import checkpoint_metadata as checkpoint_metadata
from flodl.checkpoint import checkpoint_version as checkpoint_version
from flodl.checkpoint import config_sidecar as config_sidecar
from flodl.checkpoint import load_checkpoint as load_checkpoint
from flodl.checkpoint import load_checkpoint_file as load_checkpoint_file
from flodl.checkpoint import load_optimizer_state as load_optimizer_state
from flodl.checkpoint import migrate_checkpoint as migrate_checkpoint
from flodl.checkpoint import migrate_checkpoint_file as migrate_checkpoint_file
from flodl.checkpoint import save_checkpoint as save_checkpoint
from flodl.checkpoint import save_checkpoint_file as save_checkpoint_file
from flodl.checkpoint import save_optimizer_state as save_optimizer_state
from flodl.data import Batch as Batch
from flodl.data import BatchDataSet as BatchDataSet
from flodl.data import DataLoader as DataLoader
from flodl.data import DataSet as DataSet
from flodl.data import Mnist as Mnist
from flodl.data import RandomSampler as RandomSampler
from flodl.data import Sampler as Sampler
from flodl.data import SequentialSampler as SequentialSampler
from flodl.data import TensorDataSet as TensorDataSet
from flodl.data import digits as digits
from flodl.errors import ArchitectureMismatch as ArchitectureMismatch
from flodl.errors import BuildError as BuildError
from flodl.errors import CheckpointError as CheckpointError
from flodl.errors import DataError as DataError
from flodl.errors import DivergedError as DivergedError
from flodl.errors import FlodlError as FlodlError
from flodl.errors import PathError as PathError
from flodl.errors import RunDirectoryError as RunDirectoryError
from flodl.errors import ShapeMismatch as ShapeMismatch
from flodl.errors import StateError as StateError
from flodl.graph import ArgmaxSelector as ArgmaxSelector
from flodl.graph import Capturable as Capturable
from flodl.graph import FixedSelector as FixedSelector
from flodl.graph import FlowBuilder as FlowBuilder
from flodl.graph import Graph as Graph
from flodl.graph import Lambda as Lambda
from flodl.graph import LearnedHalt as LearnedHalt
from flodl.graph import LevelTiming as LevelTiming
from flodl.graph import LoopBody as LoopBody
from flodl.graph import LoopBuilder as LoopBuilder
from flodl.graph import LossContext as LossContext
from flodl.graph import MapBuilder as MapBuilder
from flodl.graph import MergeOp as MergeOp
from flodl.graph import ModelSnapshot as ModelSnapshot
from flodl.graph import NamedInputModule as NamedInputModule
from flodl.graph import NodeTiming as NodeTiming
from flodl.graph import PathKind as PathKind
from flodl.graph import Profile as Profile
from flodl.graph import Reduce as Reduce
from flodl.graph import Reshape as Reshape
from flodl.graph import SigmoidRouter as SigmoidRouter
from flodl.graph import SoftmaxRouter as SoftmaxRouter
from flodl.graph import StateAdd as StateAdd
from flodl.graph import ThresholdHalt as ThresholdHalt
from flodl.graph import TraceEmit as TraceEmit
from flodl.graph import Trend as Trend
from flodl.graph import TrendGroup as TrendGroup
from flodl.graph import forward_via_step as forward_via_step
from flodl.graph import freeze_params as freeze_params
from flodl.graph import modules as modules
from flodl.graph import unfreeze_params as unfreeze_params
from flodl.log import Verbosity as Verbosity
from flodl.log import debug as debug
from flodl.log import enabled as enabled
from flodl.log import msg as msg
from flodl.log import set_verbosity as set_verbosity
from flodl.log import trace as trace
from flodl.log import verbose as verbose
from flodl.log import verbosity as verbosity
from flodl.monitor import CsvSink as CsvSink
from flodl.monitor import EpochMetrics as EpochMetrics
from flodl.monitor import EpochRecord as EpochRecord
from flodl.monitor import GpuSnapshot as GpuSnapshot
from flodl.monitor import HtmlSink as HtmlSink
from flodl.monitor import LogSink as LogSink
from flodl.monitor import Monitor as Monitor
from flodl.monitor import ResourceSample as ResourceSample
from flodl.monitor import ResourceSampler as ResourceSampler
from flodl.monitor import Sink as Sink
from flodl.monitor import TerminalSink as TerminalSink
from flodl.monitor import format_bytes as format_bytes
from flodl.monitor import format_duration as format_duration
from flodl.monitor import format_eta as format_eta
from flodl.monitor import format_metric as format_metric
from flodl.nn import GaussianBlur as GaussianBlur
from flodl.nn import SelfAttention as SelfAttention
from flodl.nn import gaussian_blur_2d as gaussian_blur_2d
from flodl.train import RunDirectory as RunDirectory
from flodl.train import StepEngine as StepEngine
from flodl.train import TrainedState as TrainedState
from flodl.train import Trainer as Trainer
from flodl.train import entry as entry
from flodl.train import record_scalar as record_scalar

__version__ = "0.1.0.dev0"

__all__ = [
    "ArchitectureMismatch",
    "ArgmaxSelector",
    "Batch",
    "BatchDataSet",
    "BuildError",
    "Capturable",
    "CheckpointError",
    "CsvSink",
    "DataError",
    "DataLoader",
    "DataSet",
    "DivergedError",
    "EpochMetrics",
    "EpochRecord",
    "FixedSelector",
    "FlodlError",
    "FlowBuilder",
    "GaussianBlur",
    "GpuSnapshot",
    "Graph",
    "HtmlSink",
    "Lambda",
    "LearnedHalt",
    "LevelTiming",
    "LoadReport",
    "LogSink",
    "LoopBody",
    "LoopBuilder",
    "LossContext",
    "MapBuilder",
    "MergeOp",
    "MigrateReport",
    "Mnist",
    "ModelSnapshot",
    "Monitor",
    "NamedInputModule",
    "NodeTiming",
    "PathError",
    "PathKind",
    "Profile",
    "RandomSampler",
    "Reduce",
    "Reshape",
    "ResourceSample",
    "ResourceSampler",
    "RunDirectory",
    "RunDirectoryError",
    "Sampler",
    "SelfAttention",
    "SequentialSampler",
    "ShapeMismatch",
    "SigmoidRouter",
    "Sink",
    "SoftmaxRouter",
    "StateAdd",
    "StateError",
    "StepEngine",
    "TensorDataSet",
    "TerminalSink",
    "ThresholdHalt",
    "TraceEmit",
    "TrainedState",
    "Trainer",
    "Trend",
    "TrendGroup",
    "Verbosity",
    "__version__",
    "checkpoint_keys",
    "checkpoint_metadata",
    "checkpoint_version",
    "config_sidecar",
    "debug",
    "digits",
    "enabled",
    "entry",
    "format_bytes",
    "format_duration",
    "format_eta",
    "format_metric",
    "forward_via_step",
    "freeze_params",
    "gaussian_blur_2d",
    "load_checkpoint",
    "load_checkpoint_file",
    "load_optimizer_state",
    "migrate_checkpoint",
    "migrate_checkpoint_file",
    "modules",
    "msg",
    "record_scalar",
    "save_checkpoint",
    "save_checkpoint_file",
    "save_optimizer_state",
    "set_verbosity",
    "trace",
    "unfreeze_params",
    "verbose",
    "verbosity",
]
