"""The error family of the command line.

Every failure a user can cause is an :class:`FdlError`; ``fdl.cli.entry`` alone turns one into text
and an exit code. A message says what is wrong and where (``file:line``); the hint is the next
thing to type.
"""


class FdlError(Exception):
    """A failure to tell the user about, in words they can act on.

    Args:
        message: What is wrong, and where.
        hint: The remedy, printed on its own line; empty for none.
        exit_code: What the process exits with: 1 for fdl's own failures, 2 for refused arguments.
        see: The usage line and the command with the help page, where arguments were refused.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        exit_code: int = 1,
        see: tuple[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.exit_code = exit_code
        self.see = see


class failing:  # noqa: N801 - it is used like a function
    """Turn an OSError of a block into an error that says what failed, and the system's reason.

    Args:
        what: What failed: ``notes.txt cannot be read``.
        hint: The remedy.
        kind: The class of the error.
    """

    def __init__(self, what: str, hint: str = "", kind: type[FdlError] = FdlError) -> None:
        self._what, self._hint, self._kind = what, hint, kind

    def __enter__(self) -> None:
        return

    def __exit__(self, _: object, problem: object, __: object) -> None:
        if isinstance(problem, OSError):
            raise self._kind(f"{self._what}: {problem.strerror}", hint=self._hint) from None


def reason_of(problem: Exception) -> str:
    """Return what a problem says; of one with a file, the file and the system's reason."""
    if isinstance(problem, OSError) and problem.strerror:
        place = f"{problem.filename}: " if problem.filename else ""
        return f"{place}{problem.strerror}"
    return str(problem)


class ManifestError(FdlError):
    """A manifest that cannot be read or makes no sense; the message begins with its place."""


class UsageError(FdlError):
    """Arguments that do not fit the command they were typed for; a built-in then exits with 2."""


class SelectionError(FdlError):
    """A word that does not select one environment or command of the project."""


class ScaffoldError(FdlError):
    """``fdl init`` or ``fdl add`` refused; nothing was written."""


class SchemaError(FdlError):
    """A program that cannot be asked for its arguments, or whose answer makes no sense.

    Attributes:
        passing: Whether the next request may succeed: the program took too long.
    """

    passing = False


class LibtorchError(FdlError):
    """A libtorch variant that cannot be found, installed or used; the store is as it was."""


class FetchError(FdlError):
    """A download or an archive that cannot be used; nothing was unpacked into its target."""


class BuildError(FdlError):
    """A build from source that cannot start or has failed; what was built so far is kept."""
