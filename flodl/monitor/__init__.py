"""Watching a run: a monitor emits one record per epoch, sinks show or store it."""

from flodl.monitor.delivery import Delivery as Delivery
from flodl.monitor.formats import format_bytes as format_bytes
from flodl.monitor.formats import format_duration as format_duration
from flodl.monitor.formats import format_eta as format_eta
from flodl.monitor.formats import format_metric as format_metric
from flodl.monitor.monitor import Monitor as Monitor
from flodl.monitor.records import EpochMetrics as EpochMetrics
from flodl.monitor.records import EpochRecord as EpochRecord
from flodl.monitor.records import Finish as Finish
from flodl.monitor.records import RunInfo as RunInfo
from flodl.monitor.records import Status as Status
from flodl.monitor.report import HtmlSink as HtmlSink
from flodl.monitor.resources import GpuSnapshot as GpuSnapshot
from flodl.monitor.resources import ResourceSample as ResourceSample
from flodl.monitor.resources import ResourceSampler as ResourceSampler
from flodl.monitor.sinks import BufferedSink as BufferedSink
from flodl.monitor.sinks import CsvSink as CsvSink
from flodl.monitor.sinks import LogSink as LogSink
from flodl.monitor.sinks import Sink as Sink
from flodl.monitor.sinks import TerminalSink as TerminalSink
