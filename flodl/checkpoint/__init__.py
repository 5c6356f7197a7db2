"""Checkpoints: safetensors containers, written atomically and checked before they are loaded."""

from flodl.checkpoint.migrate import (
    MigrateReport as MigrateReport,
    migrate_checkpoint as migrate_checkpoint,
    migrate_checkpoint_file as migrate_checkpoint_file,
)
from flodl.checkpoint.optimizer import (
    load_optimizer_state as load_optimizer_state,
    save_optimizer_state as save_optimizer_state,
)
from flodl.checkpoint.store import (
    LoadReport as LoadReport,
    checkpoint_keys as checkpoint_keys,
    checkpoint_metadata as checkpoint_metadata,
    checkpoint_version as checkpoint_version,
    load_checkpoint as load_checkpoint,
    load_checkpoint_file as load_checkpoint_file,
    save_checkpoint as save_checkpoint,
    save_checkpoint_file as save_checkpoint_file,
)
