"""What ``fdl --help`` shows: the project's commands, then those of fdl.

A project's page fits a small terminal: what stands first must not scroll away. There the built-in
commands are names only, and ``fdl --help all`` describes them. Imported on the warm path.
"""

from __future__ import annotations

from fdl.base.layout import Row
from fdl.cli.builtins.tree import summary
from fdl.manifest.builtins import PANELS
from fdl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fdl.base.layout import Page
    from fdl.manifest.select.project import Project

_OPTIONS = (
    Row("-h, --help", "Show help for a command; `--help all` shows all of it"),
    Row("-V, --version", "Show the version"),
    Row("--env NAME[,NAME]", "Use the overlays fdl.NAME.yml, in this order"),
    Row("-v, -vv, -vvv", "Print more: verbose, debug, trace"),
    Row("-q, --quiet", "Print less"),
    Row("--ansi, --no-ansi", "Force or forbid colour"),
    Row("--no-append", "Leave out the `append` arguments of a run command"),
    Row("-n, --dry-run [--json]", "Show what would run, and run nothing (before the command)"),
    Row("-y, --yes", "Answer every question with yes (before the command)"),
    Row("--force", "Run a command even if its inputs are unchanged (before the command)"),
    Row("--jobs N", "Run several commands, or the runs of a sweep, N at a time"),
    Row("--gpus-each N", "Give each of these jobs N GPUs of its own"),
    Row("--name NAME", "Call the run NAME in lists and in `fdl runs` (before the command)"),
    Row("--each KEY=VALUES", "Sweep: run a command once for each value; --zip pairs the values"),
    Row("--on slurm", "Run a command, or the runs of a sweep, as jobs of a SLURM cluster"),
    Row("--search tpe", "Let Optuna choose the values, with --trials N --goal METRIC:min"),
)
_NAMES = (
    "--help, --version, --env NAME, -v, --quiet, --ansi, --no-ansi, --no-append, --dry-run, "
    "--json, --yes, --force, --jobs N, --each"
)


def draw(
    page: Page,
    project: Project | None,
    description: str | None = None,
    commands: Sequence[Row] = (),
    *,
    full: bool = False,
) -> None:
    """Write the page; ``commands`` are those of the manifest.

    ``full`` describes the built-in commands and the options of a project's page, too.
    """
    page.title("fdl" if description else f"fdl {__version__}", description)
    page.usage("fdl [OPTIONS] COMMAND [ARGS]")
    page.table("Commands", commands)
    environments = project.environments() if project else []
    if project and environments:
        marked = (
            f"{one} (active)" if one in (project.env or "").split(",") else one
            for one in environments
        )
        page.line("Environments", ", ".join(marked))
    if project and not full:
        rows = [Row(panel, ", ".join(names)) for panel, names in PANELS.items()]
        page.table("Built-in commands (see fdl --help all)", rows)
        page.line("Options", _NAMES)
        return
    for panel, names in PANELS.items():
        page.table(panel, [Row(name, summary(name)) for name in names])
    page.table("Options", _OPTIONS)
    if project is None:
        page.prose("Start a project with `fdl init demo`.")
