"""flodl: graphs as data flow, and training that survives, on PyTorch."""

from typing import TYPE_CHECKING

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
from flodl.data import Cifar10 as Cifar10
from flodl.data import DataLoader as DataLoader
from flodl.data import DataSet as DataSet
from flodl.data import MemmapDataSet as MemmapDataSet
from flodl.data import Mnist as Mnist
from flodl.data import RandomSampler as RandomSampler
from flodl.data import Sampler as Sampler
from flodl.data import SequentialSampler as SequentialSampler
from flodl.data import Shakespeare as Shakespeare
from flodl.data import TensorDataSet as TensorDataSet
from flodl.data import digits as digits
from flodl.distributed.averaging.outer import Nesterov as Nesterov
from flodl.distributed.config import Backend as Backend
from flodl.distributed.config import DdpConfig as DdpConfig
from flodl.distributed.config import DdpRunConfig as DdpRunConfig
from flodl.distributed.config import Policy as Policy
from flodl.errors import ArchitectureMismatch as ArchitectureMismatch
from flodl.errors import BatchMismatchError as BatchMismatchError
from flodl.errors import BuildError as BuildError
from flodl.errors import CheckpointError as CheckpointError
from flodl.errors import DataError as DataError
from flodl.errors import DistributedError as DistributedError
from flodl.errors import DivergedError as DivergedError
from flodl.errors import FlodlError as FlodlError
from flodl.errors import PathError as PathError
from flodl.errors import PlanMismatchError as PlanMismatchError
from flodl.errors import RunDirectoryError as RunDirectoryError
from flodl.errors import ShapeMismatch as ShapeMismatch
from flodl.errors import StateError as StateError
from flodl.errors import WorkersFailed as WorkersFailed
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
from flodl.memory import cuda_active_bytes as cuda_active_bytes
from flodl.memory import cuda_allocated_bytes as cuda_allocated_bytes
from flodl.memory import cuda_empty_cache as cuda_empty_cache
from flodl.memory import cuda_memory_info as cuda_memory_info
from flodl.memory import cuda_peak_active_bytes as cuda_peak_active_bytes
from flodl.memory import cuda_peak_reserved_bytes as cuda_peak_reserved_bytes
from flodl.memory import cuda_reset_peak_stats as cuda_reset_peak_stats
from flodl.memory import cuda_utilization as cuda_utilization
from flodl.memory import hardware_summary as hardware_summary
from flodl.memory import live_tensor_count as live_tensor_count
from flodl.memory import malloc_trim as malloc_trim
from flodl.memory import manual_seed as manual_seed
from flodl.memory import rss_kb as rss_kb
from flodl.memory import set_cudnn_benchmark as set_cudnn_benchmark
from flodl.monitor import Account as Account
from flodl.monitor import CsvSink as CsvSink
from flodl.monitor import EpochMetrics as EpochMetrics
from flodl.monitor import EpochRecord as EpochRecord
from flodl.monitor import EventKind as EventKind
from flodl.monitor import GpuSnapshot as GpuSnapshot
from flodl.monitor import HtmlSink as HtmlSink
from flodl.monitor import IdleGap as IdleGap
from flodl.monitor import JsonlSink as JsonlSink
from flodl.monitor import LedgerSink as LedgerSink
from flodl.monitor import LogSink as LogSink
from flodl.monitor import MlflowSink as MlflowSink
from flodl.monitor import Monitor as Monitor
from flodl.monitor import RankMetrics as RankMetrics
from flodl.monitor import ResourceSample as ResourceSample
from flodl.monitor import ResourceSampler as ResourceSampler
from flodl.monitor import Sink as Sink
from flodl.monitor import StepSeries as StepSeries
from flodl.monitor import StepSink as StepSink
from flodl.monitor import TensorBoardSink as TensorBoardSink
from flodl.monitor import TerminalSink as TerminalSink
from flodl.monitor import TimeLedger as TimeLedger
from flodl.monitor import Timeline as Timeline
from flodl.monitor import TimelineBroadcast as TimelineBroadcast
from flodl.monitor import TimelineEvent as TimelineEvent
from flodl.monitor import TimelineSample as TimelineSample
from flodl.monitor import TimelineSummary as TimelineSummary
from flodl.monitor import format_bytes as format_bytes
from flodl.monitor import format_duration as format_duration
from flodl.monitor import format_eta as format_eta
from flodl.monitor import format_metric as format_metric
from flodl.nn import SGD as SGD
from flodl.nn import Adagrad as Adagrad
from flodl.nn import Adam as Adam
from flodl.nn import AdamW as AdamW
from flodl.nn import AutocastGuard as AutocastGuard
from flodl.nn import CaptureMode as CaptureMode
from flodl.nn import CosineScheduler as CosineScheduler
from flodl.nn import CudaGraph as CudaGraph
from flodl.nn import CyclicLR as CyclicLR
from flodl.nn import ExponentialLR as ExponentialLR
from flodl.nn import GaussianBlur as GaussianBlur
from flodl.nn import GradScaler as GradScaler
from flodl.nn import MultiStepLR as MultiStepLR
from flodl.nn import NAdam as NAdam
from flodl.nn import OneCycleLR as OneCycleLR
from flodl.nn import PlateauScheduler as PlateauScheduler
from flodl.nn import RAdam as RAdam
from flodl.nn import RMSprop as RMSprop
from flodl.nn import Scheduler as Scheduler
from flodl.nn import SelfAttention as SelfAttention
from flodl.nn import StepDecay as StepDecay
from flodl.nn import WarmupScheduler as WarmupScheduler
from flodl.nn import as_torch_scheduler as as_torch_scheduler
from flodl.nn import autocast as autocast
from flodl.nn import bce_loss as bce_loss
from flodl.nn import bce_with_logits_loss as bce_with_logits_loss
from flodl.nn import cast_parameters as cast_parameters
from flodl.nn import clip_grad_norm as clip_grad_norm
from flodl.nn import clip_grad_value as clip_grad_value
from flodl.nn import cosine_embedding_loss as cosine_embedding_loss
from flodl.nn import cross_entropy_loss as cross_entropy_loss
from flodl.nn import ctc_loss as ctc_loss
from flodl.nn import cuda_graph_capture as cuda_graph_capture
from flodl.nn import cuda_graph_pool_handle as cuda_graph_pool_handle
from flodl.nn import focal_loss as focal_loss
from flodl.nn import gaussian_blur_2d as gaussian_blur_2d
from flodl.nn import hinge_embedding_loss as hinge_embedding_loss
from flodl.nn import is_autocast_enabled as is_autocast_enabled
from flodl.nn import kaiming_normal as kaiming_normal
from flodl.nn import kaiming_uniform as kaiming_uniform
from flodl.nn import kl_div_loss as kl_div_loss
from flodl.nn import l1_loss as l1_loss
from flodl.nn import margin_ranking_loss as margin_ranking_loss
from flodl.nn import mse_loss as mse_loss
from flodl.nn import nll_loss as nll_loss
from flodl.nn import normal as normal
from flodl.nn import orthogonal as orthogonal
from flodl.nn import poisson_nll_loss as poisson_nll_loss
from flodl.nn import scale_lr as scale_lr
from flodl.nn import set_group_lr as set_group_lr
from flodl.nn import set_lr as set_lr
from flodl.nn import smooth_l1_loss as smooth_l1_loss
from flodl.nn import triplet_margin_loss as triplet_margin_loss
from flodl.nn import trunc_normal as trunc_normal
from flodl.nn import uniform as uniform
from flodl.nn import uniform_bias as uniform_bias
from flodl.nn import xavier_normal as xavier_normal
from flodl.nn import xavier_uniform as xavier_uniform
from flodl.rng import Rng as Rng
from flodl.train import Callback as Callback
from flodl.train import EarlyStop as EarlyStop
from flodl.train import RunDirectory as RunDirectory
from flodl.train import SetupConfig as SetupConfig
from flodl.train import StepEngine as StepEngine
from flodl.train import Terminated as Terminated
from flodl.train import TrainedState as TrainedState
from flodl.train import Trainer as Trainer
from flodl.train import TrainingRun as TrainingRun
from flodl.train import WeightAverage as WeightAverage
from flodl.train import entry as entry
from flodl.train import record_scalar as record_scalar
from flodl.worker import CpuWorker as CpuWorker

if TYPE_CHECKING:
    from flodl.distributed.plain_loop.wrap import Ddp as Ddp
    from flodl.distributed.verify import verify_run as verify_run

__version__ = "0.1.0.dev0"


def __getattr__(name: str) -> object:
    if name == "Ddp":
        from flodl.distributed.plain_loop.wrap import Ddp

        return Ddp
    # Also a program: python would warn of a module that is loaded before it runs.
    if name == "verify_run":
        from flodl.distributed.verify import verify_run

        return verify_run
    raise AttributeError(f"module 'flodl' has no attribute {name!r}")


__all__ = [
    "SGD",
    "Account",
    "Adagrad",
    "Adam",
    "AdamW",
    "ArchitectureMismatch",
    "ArgmaxSelector",
    "AutocastGuard",
    "Backend",
    "Batch",
    "BatchDataSet",
    "BatchMismatchError",
    "BuildError",
    "Callback",
    "Capturable",
    "CaptureMode",
    "CheckpointError",
    "Cifar10",
    "CosineScheduler",
    "CpuWorker",
    "CsvSink",
    "CudaGraph",
    "CyclicLR",
    "DataError",
    "DataLoader",
    "DataSet",
    "Ddp",
    "DdpConfig",
    "DdpRunConfig",
    "DistributedError",
    "DivergedError",
    "EarlyStop",
    "EpochMetrics",
    "EpochRecord",
    "EventKind",
    "ExponentialLR",
    "FixedSelector",
    "FlodlError",
    "FlowBuilder",
    "GaussianBlur",
    "GpuSnapshot",
    "GradScaler",
    "Graph",
    "HtmlSink",
    "IdleGap",
    "JsonlSink",
    "Lambda",
    "LearnedHalt",
    "LedgerSink",
    "LevelTiming",
    "LoadReport",
    "LogSink",
    "LoopBody",
    "LoopBuilder",
    "LossContext",
    "MapBuilder",
    "MemmapDataSet",
    "MergeOp",
    "MigrateReport",
    "MlflowSink",
    "Mnist",
    "ModelSnapshot",
    "Monitor",
    "MultiStepLR",
    "NAdam",
    "NamedInputModule",
    "Nesterov",
    "NodeTiming",
    "OneCycleLR",
    "PathError",
    "PathKind",
    "PlanMismatchError",
    "PlateauScheduler",
    "Policy",
    "Profile",
    "RAdam",
    "RMSprop",
    "RandomSampler",
    "RankMetrics",
    "Reduce",
    "Reshape",
    "ResourceSample",
    "ResourceSampler",
    "Rng",
    "RunDirectory",
    "RunDirectoryError",
    "Sampler",
    "Scheduler",
    "SelfAttention",
    "SequentialSampler",
    "SetupConfig",
    "Shakespeare",
    "ShapeMismatch",
    "SigmoidRouter",
    "Sink",
    "SoftmaxRouter",
    "StateAdd",
    "StateError",
    "StepDecay",
    "StepEngine",
    "StepSeries",
    "StepSink",
    "TensorBoardSink",
    "TensorDataSet",
    "TerminalSink",
    "Terminated",
    "ThresholdHalt",
    "TimeLedger",
    "Timeline",
    "TimelineBroadcast",
    "TimelineEvent",
    "TimelineSample",
    "TimelineSummary",
    "TraceEmit",
    "TrainedState",
    "Trainer",
    "TrainingRun",
    "Trend",
    "TrendGroup",
    "Verbosity",
    "WarmupScheduler",
    "WeightAverage",
    "WorkersFailed",
    "__version__",
    "as_torch_scheduler",
    "autocast",
    "bce_loss",
    "bce_with_logits_loss",
    "cast_parameters",
    "checkpoint_keys",
    "checkpoint_metadata",
    "checkpoint_version",
    "clip_grad_norm",
    "clip_grad_value",
    "config_sidecar",
    "cosine_embedding_loss",
    "cross_entropy_loss",
    "ctc_loss",
    "cuda_active_bytes",
    "cuda_allocated_bytes",
    "cuda_empty_cache",
    "cuda_graph_capture",
    "cuda_graph_pool_handle",
    "cuda_memory_info",
    "cuda_peak_active_bytes",
    "cuda_peak_reserved_bytes",
    "cuda_reset_peak_stats",
    "cuda_utilization",
    "debug",
    "digits",
    "enabled",
    "entry",
    "focal_loss",
    "format_bytes",
    "format_duration",
    "format_eta",
    "format_metric",
    "forward_via_step",
    "freeze_params",
    "gaussian_blur_2d",
    "hardware_summary",
    "hinge_embedding_loss",
    "is_autocast_enabled",
    "kaiming_normal",
    "kaiming_uniform",
    "kl_div_loss",
    "l1_loss",
    "live_tensor_count",
    "load_checkpoint",
    "load_checkpoint_file",
    "load_optimizer_state",
    "malloc_trim",
    "manual_seed",
    "margin_ranking_loss",
    "migrate_checkpoint",
    "migrate_checkpoint_file",
    "modules",
    "mse_loss",
    "msg",
    "nll_loss",
    "normal",
    "orthogonal",
    "poisson_nll_loss",
    "record_scalar",
    "rss_kb",
    "save_checkpoint",
    "save_checkpoint_file",
    "save_optimizer_state",
    "scale_lr",
    "set_cudnn_benchmark",
    "set_group_lr",
    "set_lr",
    "set_verbosity",
    "smooth_l1_loss",
    "trace",
    "triplet_margin_loss",
    "trunc_normal",
    "unfreeze_params",
    "uniform",
    "uniform_bias",
    "verbose",
    "verbosity",
    "verify_run",
    "xavier_normal",
    "xavier_uniform",
]
