"""Training: builder, loop, step engines, run directories and entry programs."""

from flodl.ranks.launch.interrupt import Terminated as Terminated
from flodl.train.builder import TrainerBuilder as TrainerBuilder
from flodl.train.callbacks import (
    Callback as Callback,
    Rewind as Rewind,
    TrainingRun as TrainingRun,
    Worker as Worker,
)
from flodl.train.entry import entry as entry
from flodl.train.handle import TrainedState as TrainedState, TrainerHandle as TrainerHandle
from flodl.train.metrics import record_scalar as record_scalar
from flodl.train.observers.ema import WeightAverage as WeightAverage
from flodl.train.run.run_directory import RunDirectory as RunDirectory
