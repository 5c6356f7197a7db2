"""The entry point of every training: the Trainer, its builder, and the setup of a user's loop."""

from flodl.trainer.setup import SetupConfig as SetupConfig
from flodl.trainer.setup import TrainingSetup as TrainingSetup
from flodl.trainer.trainer import Trainer as Trainer
from flodl.trainer.trainer import TrainerBuilder as TrainerBuilder
