"""The error family of the framework: every failure a user can cause derives from FlodlError.

Bad argument values raise ``ValueError``; exceptions of user modules keep their type and gain a
note.
"""


class FlodlError(RuntimeError):
    """Base of everything flodl raises on purpose."""


class BuildError(FlodlError):
    """A graph description that cannot become a graph; names the caller's file and line."""


class PathError(FlodlError):
    """A dotted path that leads nowhere in a graph tree."""


class StateError(FlodlError):
    """An operation at a moment when the object cannot do it."""


class DataError(FlodlError):
    """Data that is malformed, inconsistent or empty."""


class CheckpointError(FlodlError):
    """A checkpoint that cannot be read or does not fit."""


class ArchitectureMismatch(CheckpointError):  # noqa: N818 - the field calls it a mismatch
    """The file was written by a graph with another structural hash."""


class ShapeMismatch(CheckpointError):  # noqa: N818
    """Tensors of the file and of the model have the same name and another shape."""


class DivergedError(FlodlError):
    """The loss stopped being finite.

    Attributes:
        epoch: Epoch in which it happened, counted from 0.
        step: Step within that epoch, counted from 0.
    """

    def __init__(self, message: str, *, epoch: int, step: int) -> None:
        super().__init__(message)
        self.epoch = epoch
        self.step = step


class RunDirectoryError(FlodlError):
    """A run directory that cannot be made or written."""


class DistributedError(FlodlError):
    """Ranks that cannot go on together."""


class PlanMismatchError(DistributedError):
    """Ranks that were to plan the same window planned different ones."""


class BatchMismatchError(DistributedError):
    """Ranks that were to see the same batch saw different ones."""


class WorkersFailed(DistributedError):  # noqa: N818 - it tells what happened to the others
    """A rank ended with an error, and there was no restart left.

    Attributes:
        rank: The first that failed; None where no rank could be made out.
        cause: Its exit code, signal or exception in a few words.
        traceback: Its traceback, where it left one.
        last_checkpoint: Path of the newest checkpoint, where there is one.
    """

    def __init__(
        self,
        message: str,
        *,
        rank: int | None = None,
        cause: str = "",
        traceback: str = "",
        last_checkpoint: str | None = None,
    ) -> None:
        super().__init__(message)
        self.rank = rank
        self.cause = cause
        self.traceback = traceback
        self.last_checkpoint = last_checkpoint
