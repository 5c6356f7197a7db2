"""The exceptions of flodl: every failure a user can cause derives from FlodlError.

Two cases differ. A bad argument value raises ``ValueError``. Exceptions raised in user modules
keep their type and gain a note.
"""


class FlodlError(RuntimeError):
    """Base class of every error that flodl raises on purpose."""


class BuildError(FlodlError):
    """A graph description cannot become a graph; the message names the caller's file and line."""


class PathError(FlodlError):
    """A dotted path does not exist in a graph tree."""


class StateError(FlodlError):
    """The object cannot do this operation in its current state."""


class DataError(FlodlError):
    """Data is malformed, inconsistent or empty."""


class CheckpointError(FlodlError):
    """A checkpoint cannot be read or does not fit the model."""


class ArchitectureMismatch(CheckpointError):  # noqa: N818 - the field calls it a mismatch
    """The graph that wrote the file has another structural hash."""


class ShapeMismatch(CheckpointError):  # noqa: N818
    """A tensor of the file and a tensor of the model share a name but not a shape."""


class DivergedError(FlodlError):
    """The loss is no longer finite.

    Attributes:
        epoch: Epoch in which it happened, counted from 0.
        step: Step within that epoch, counted from 0.
        what: What is not finite, without the place; the message if nothing else is known.
    """

    def __init__(self, message: str, *, epoch: int, step: int, what: str = "") -> None:
        super().__init__(message)
        self.epoch = epoch
        self.step = step
        self.what = what or message


class RunDirectoryError(FlodlError):
    """A run directory cannot be created or written."""


class DistributedError(FlodlError):
    """The ranks cannot continue together."""


class PlanMismatchError(DistributedError):
    """Ranks planned different windows where they should have planned the same one."""


class BatchMismatchError(DistributedError):
    """Ranks got different batches where they should have got the same one."""


class WorkersFailed(DistributedError):  # noqa: N818 - the name says what happened to the ranks
    """A rank ended with an error and no restart was left.

    Attributes:
        rank: The rank that failed first; None if it is unknown.
        cause: Its exit code, signal or exception in a few words.
        traceback: Its traceback, if it left one.
        last_checkpoint: Path of the newest checkpoint, if there is one.
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
