"""The entry point of every training: the Trainer, its builder, and the setup of a user's loop."""

from flodl.trainer.setup import SetupConfig as SetupConfig, TrainingSetup as TrainingSetup
from flodl.trainer.trainer import Trainer as Trainer, TrainerBuilder as TrainerBuilder
