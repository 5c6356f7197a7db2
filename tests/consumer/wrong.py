"""A program with three mistakes. Type checkers must report each: then they know flodl's types."""

from fdl import FdlArgs, option
from flodl import RunDirectory, TensorDataSet


class Args(FdlArgs):
    """Train a model."""

    epochs: int = option(default=3, help="Passes over the data")


epochs: str = Args.parse_or_schema().epochs
data = TensorDataSet("no tensor")
run = RunDirectory.create("runs", no_such_option=True)
