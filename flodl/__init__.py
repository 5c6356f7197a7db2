"""flodl: graphs as data flow, and training that survives, on PyTorch."""

try:
    import torch as _torch  # noqa: F401
except ImportError:
    raise ImportError(
        "flodl needs PyTorch, which is not installed: pip install 'flodl[train]'"
    ) from None

from flodl.checkpoint import LoadReport as LoadReport
from flodl.checkpoint import checkpoint_keys as checkpoint_keys
from flodl.checkpoint import checkpoint_metadata as checkpoint_metadata
from flodl.checkpoint import checkpoint_version as checkpoint_version
from flodl.checkpoint import load_checkpoint as load_checkpoint
from flodl.checkpoint import load_checkpoint_file as load_checkpoint_file
from flodl.checkpoint import save_checkpoint as save_checkpoint
from flodl.checkpoint import save_checkpoint_file as save_checkpoint_file
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
from flodl.graph import FlowBuilder as FlowBuilder
from flodl.graph import Graph as Graph
from flodl.graph import Lambda as Lambda
from flodl.graph import MergeOp as MergeOp
from flodl.graph import modules as modules
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
from flodl.train import RunDirectory as RunDirectory
from flodl.train import StepEngine as StepEngine
from flodl.train import TrainedState as TrainedState
from flodl.train import Trainer as Trainer
from flodl.train import entry as entry
from flodl.train import record_scalar as record_scalar

__version__ = "0.1.0.dev0"

__all__ = [
    "ArchitectureMismatch",
    "Batch",
    "BatchDataSet",
    "BuildError",
    "CheckpointError",
    "CsvSink",
    "DataError",
    "DataLoader",
    "DataSet",
    "DivergedError",
    "EpochMetrics",
    "EpochRecord",
    "FlodlError",
    "FlowBuilder",
    "GpuSnapshot",
    "Graph",
    "HtmlSink",
    "Lambda",
    "LoadReport",
    "LogSink",
    "MergeOp",
    "Mnist",
    "Monitor",
    "PathError",
    "RandomSampler",
    "ResourceSample",
    "ResourceSampler",
    "RunDirectory",
    "RunDirectoryError",
    "Sampler",
    "SequentialSampler",
    "ShapeMismatch",
    "Sink",
    "StateError",
    "StepEngine",
    "TensorDataSet",
    "TerminalSink",
    "TrainedState",
    "Trainer",
    "Verbosity",
    "__version__",
    "checkpoint_keys",
    "checkpoint_metadata",
    "checkpoint_version",
    "debug",
    "digits",
    "enabled",
    "entry",
    "format_bytes",
    "format_duration",
    "format_eta",
    "format_metric",
    "load_checkpoint",
    "load_checkpoint_file",
    "modules",
    "msg",
    "record_scalar",
    "save_checkpoint",
    "save_checkpoint_file",
    "set_verbosity",
    "trace",
    "verbose",
    "verbosity",
]
