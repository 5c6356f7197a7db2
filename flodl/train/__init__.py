"""Training: the Trainer, its step engines, run directories and entry programs."""

from flodl.train.engine import EagerEngine as EagerEngine
from flodl.train.engine import StepEngine as StepEngine
from flodl.train.entry import entry as entry
from flodl.train.handle import TrainedState as TrainedState
from flodl.train.handle import TrainerHandle as TrainerHandle
from flodl.train.loop import Worker as Worker
from flodl.train.metrics import record_scalar as record_scalar
from flodl.train.run_directory import RunDirectory as RunDirectory
from flodl.train.trainer import Trainer as Trainer
from flodl.train.trainer import TrainerBuilder as TrainerBuilder
from flodl.train.trainer import TrainingSetup as TrainingSetup
