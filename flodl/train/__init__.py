"""Training on one device: builder, loop, step engines, run directories and entry programs."""

from flodl.launch.interrupt import Terminated as Terminated
from flodl.train.builder import TrainerBuilder as TrainerBuilder
from flodl.train.callbacks import Callback as Callback, Rewind as Rewind, TrainingRun as TrainingRun
from flodl.train.early_stop import EarlyStop as EarlyStop
from flodl.train.ema import WeightAverage as WeightAverage
from flodl.train.engines import StepEngine as StepEngine, StepSettings as StepSettings
from flodl.train.entry import entry as entry
from flodl.train.handle import TrainedState as TrainedState, TrainerHandle as TrainerHandle
from flodl.train.metrics import record_scalar as record_scalar
from flodl.train.plan import Worker as Worker
from flodl.train.run_directory import RunDirectory as RunDirectory
