"""Names of the built-in commands. `fdl` knows them before it looks into a manifest.

Imported on the warm path: names only. Each command is a Typer function in a module of
``fdl/cli/commands``. ``application.py`` imports that module when its name is typed.
"""

PANELS = {
    "Project": ("init", "adopt", "add", "list", "check", "config", "why"),
    "Runs": ("plan", "runs", "sweep"),
    "Machine and libtorch": ("setup", "diagnose", "libtorch"),
    "Models": ("flodl-hf", "ddp-bench", "docs"),
    "About fdl": ("self",),
}
"""Heading on the help page -> the built-in commands below it."""

BUILTINS = tuple(name for names in PANELS.values() for name in names)
"""All built-in commands, in the order of the help page."""

OF_SELF = ("install", "completions", "skill", "api-ref")
"""Commands of the group ``self`` that work without its name, too."""

HIDDEN = ("help", "version", "__complete", *OF_SELF)
"""Names that work but are not listed."""

PROGRAMS = ("ddp-bench", "flodl-hf")
"""Built-in commands that are programs with a manifest of their own: presets, help, dry runs."""

YIELDING = ("adopt", "check", "docs", "plan", "sweep", *PROGRAMS)
"""Built-in commands that a project's command of the same name replaces."""

JOINING = ("flodl-hf",)
"""Those of them whose own commands stay available beside the project's."""

RESERVED = (*(name for name in BUILTINS if name not in YIELDING), *HIDDEN)
"""Names that a project's commands cannot have."""
