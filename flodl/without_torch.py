"""What `import flodl` does without PyTorch: one sentence that names the command to type."""

import sys
from types import TracebackType
from typing import NoReturn


class TorchMissingError(ImportError):
    """PyTorch is not installed."""


def refuse() -> NoReturn:
    """Raise the error.

    A program that does not catch it ends with one line and not with a traceback. Nothing else that
    Python offers can print an uncaught error in one line, so this replaces ``sys.excepthook``.

    Raises:
        TorchMissingError: Always.
    """
    others = sys.excepthook

    def in_one_line(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        if isinstance(error, TorchMissingError):
            sys.stderr.write(f"error: {error}\n")
        else:
            others(kind, error, trace)

    sys.excepthook = in_one_line
    raise TorchMissingError(
        "flodl needs PyTorch, which is not installed; type: pip install 'flodl[train]'",
        name="torch",
    ) from None
