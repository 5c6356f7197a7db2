"""Monitor a run: a monitor emits records, sinks show or store them; a ledger accounts for time."""

from fdl.base.units import (
    format_bytes as format_bytes,
    format_duration as format_duration,
    format_eta as format_eta,
    format_metric as format_metric,
)
from flodl.monitor.ledger import Account as Account, TimeLedger as TimeLedger
from flodl.monitor.media.folder import MediaFolderSink as MediaFolderSink
from flodl.monitor.mlflow import MlflowSink as MlflowSink
from flodl.monitor.monitor import Monitor as Monitor
from flodl.monitor.records import (
    EpochMetrics as EpochMetrics,
    EpochRecord as EpochRecord,
    Finish as Finish,
    GpuMetrics as GpuMetrics,
    RankMetrics as RankMetrics,
    RankSummary as RankSummary,
    RunInfo as RunInfo,
    Status as Status,
    StepProgress as StepProgress,
    StepSeries as StepSeries,
)
from flodl.monitor.resources import (
    GpuSnapshot as GpuSnapshot,
    ResourceSample as ResourceSample,
    ResourceSampler as ResourceSampler,
)
from flodl.monitor.sinks import Sink as Sink
from flodl.monitor.tensorboard import TensorBoardSink as TensorBoardSink
from flodl.monitor.timeline import Timeline as Timeline, merge_timelines as merge_timelines
from flodl.monitor.timeline_records import (
    EventKind as EventKind,
    IdleGap as IdleGap,
    TimelineEvent as TimelineEvent,
    TimelineSample as TimelineSample,
    TimelineSummary as TimelineSummary,
)
from flodl.monitor.wandb import WandbSink as WandbSink
