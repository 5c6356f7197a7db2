"""Built-in commands: the names fdl answers to before it looks into a manifest."""

BUILTINS = {
    "init": "Start a new project in a new folder",
    "config": "Show the manifest's values and where each was written",
}
"""Name -> one line of help, in the order of the help page."""

HIDDEN = ("version",)
"""Names that work but are not listed."""
