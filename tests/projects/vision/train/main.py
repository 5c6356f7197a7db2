"""Print the arguments with their origins, and where the program stands."""

import json
import os
from pathlib import Path

from fdl import FdlArgs, option


class Args(FdlArgs):
    """Train the classifier."""

    epochs: int = option(default=10)
    seed: int = option(default=0)
    batches: int | None = option()
    model: str = option(default="resnet", choices=["resnet", "linear"])
    verbose_loss: bool = option()
    output: str = option(default="out")
    width: int = option(default=64, env="VISION_WIDTH")


print(
    json.dumps(
        {
            "args": Args.parse_or_schema().resolved(),
            "cwd": Path.cwd().name,
            "root": Path(os.environ["FDL_PROJECT_ROOT"]).name,
        }
    )
)
