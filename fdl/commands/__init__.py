"""Built-in commands: the names fdl answers to before it looks into a manifest.

Imported on the warm path: names only. What each command takes stands in
:mod:`fdl.commands.registry`, what it does in a module of its own.
"""

BUILTINS = {
    "setup": "Prepare this machine or project: libtorch, containers, Python",
    "libtorch": "Install, choose, use and check the C++ library of PyTorch",
    "init": "Start a new project in a new folder",
    "diagnose": "Report on system, GPUs and libtorch, and whether they fit",
    "install": "Put fdl on the PATH of this user, or upgrade it",
    "skill": "Teach a coding assistant to port models to flodl",
    "api-ref": "Print the reference of flodl's classes and functions",
    "list": "List every command of the project, one per line",
    "runs": "List, compare, watch and clear away past and present runs",
    "why": "Explain one value: every place that sets it, and which one wins",
    "config": "Show the manifest's values with their places, or change one",
    "schema": "Look after what fdl knows about the arguments of programs",
    "completions": "Print the completion script of a shell",
    "autocomplete": "Install completion into the start-up file of your shell",
}
"""Name -> one line of help, in the order of the help page."""

HIDDEN = ("version", "__complete")
"""Names that work but are not listed."""
