"""Monitor a run: a monitor emits records, sinks show or store them; a ledger accounts for time."""

from fdl.base.units import (
    format_bytes as format_bytes,
    format_duration as format_duration,
    format_eta as format_eta,
    format_metric as format_metric,
)
from flodl.monitor.drawing import Drawable as Drawable
from flodl.monitor.jsonl import JsonlSink as JsonlSink
from flodl.monitor.ledger import Account as Account, TimeLedger as TimeLedger
from flodl.monitor.media import (
    ConfusionMatrix as ConfusionMatrix,
    Curve as Curve,
    Curves as Curves,
    Histogram as Histogram,
    Image as Image,
    MediaFolderSink as MediaFolderSink,
    MediaRecord as MediaRecord,
    Table as Table,
    Text as Text,
)
from flodl.monitor.mlflow import MlflowSink as MlflowSink
from flodl.monitor.monitor import Monitor as Monitor
from flodl.monitor.records import (
    BestEpoch as BestEpoch,
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
from flodl.monitor.report import HtmlSink as HtmlSink
from flodl.monitor.resources import (
    GpuSnapshot as GpuSnapshot,
    ResourceSample as ResourceSample,
    ResourceSampler as ResourceSampler,
)
from flodl.monitor.server import PageFilesSink as PageFilesSink
from flodl.monitor.sink_delivery import Delivery as Delivery
from flodl.monitor.sinks import (
    CsvSink as CsvSink,
    LogSink as LogSink,
    Sink as Sink,
    TerminalSink as TerminalSink,
)
from flodl.monitor.step_files import StepFilesSink as StepFilesSink
from flodl.monitor.tensorboard import TensorBoardSink as TensorBoardSink
from flodl.monitor.timeline import Timeline as Timeline, merge_timelines as merge_timelines
from flodl.monitor.timeline_records import (
    EventKind as EventKind,
    IdleGap as IdleGap,
    RankActivity as RankActivity,
    TimelineEvent as TimelineEvent,
    TimelineSample as TimelineSample,
    TimelineSummary as TimelineSummary,
)
from flodl.monitor.wandb import WandbSink as WandbSink
