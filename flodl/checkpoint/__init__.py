"""Checkpoints: safetensors containers, written atomically and checked before they are loaded."""

from flodl.checkpoint.files import config_sidecar as config_sidecar
from flodl.checkpoint.migrate import MigrateReport as MigrateReport
from flodl.checkpoint.migrate import migrate_checkpoint as migrate_checkpoint
from flodl.checkpoint.migrate import migrate_checkpoint_file as migrate_checkpoint_file
from flodl.checkpoint.names import persistent_buffers as persistent_buffers
from flodl.checkpoint.names import qualify as qualify
from flodl.checkpoint.optimizer import load_optimizer_state as load_optimizer_state
from flodl.checkpoint.optimizer import save_optimizer_state as save_optimizer_state
from flodl.checkpoint.store import LoadReport as LoadReport
from flodl.checkpoint.store import checkpoint_keys as checkpoint_keys
from flodl.checkpoint.store import checkpoint_metadata as checkpoint_metadata
from flodl.checkpoint.store import checkpoint_version as checkpoint_version
from flodl.checkpoint.store import load_checkpoint as load_checkpoint
from flodl.checkpoint.store import load_checkpoint_file as load_checkpoint_file
from flodl.checkpoint.store import save_checkpoint as save_checkpoint
from flodl.checkpoint.store import save_checkpoint_file as save_checkpoint_file
