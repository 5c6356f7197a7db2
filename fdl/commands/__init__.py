"""Built-in commands: the names fdl answers to before it looks into a manifest.

Imported on the warm path: names only. What each command takes stands in
:mod:`fdl.commands.registry`, what it does in a module of its own.
"""

BUILTINS = {
    "setup": "Prepare this machine or project: libtorch, containers, Python",
    "libtorch": "Install, choose, use and check the C++ library of PyTorch",
    "init": "Start a new project in a new folder",
    "add": "Add flodl's part for Hugging Face models to a project",
    "diagnose": "Report on system, GPUs and libtorch, and whether they fit",
    "install": "Put fdl on the PATH of this user, or upgrade it",
    "skill": "Teach a coding assistant to port models to flodl",
    "api-ref": "Print the reference of flodl's classes and functions",
    "list": "List every command of the project, one per line",
    "runs": "List, compare, watch and clear away past and present runs",
    "verify-run": "Prove that a run trained every sample as often as it should",
    "plan": "Show what a command would start, on which devices and with which settings",
    "ddp-bench": "Compare the ways to train on several devices with each other",
    "flodl-hf": "Convert, export, check and try models of HuggingFace",
    "why": "Explain one value: every place that sets it, and which one wins",
    "config": "Show the manifest's values with their places, or change one",
    "schema": "Look after what fdl knows about the arguments of programs",
    "completions": "Print the completion script of a shell",
    "autocomplete": "Install completion into the start-up file of your shell",
}
"""Name -> one line of help, in the order of the help page."""

HIDDEN = ("version", "__complete")
"""Names that work but are not listed."""

YIELDING = ("verify-run", "plan", "ddp-bench", "flodl-hf")
"""Built-in commands that step back where a project has a command of their name."""

JOINING = ("flodl-hf",)
"""Those of them whose own commands are there besides those of the project."""

RESERVED = (*(name for name in BUILTINS if name not in YIELDING), *HIDDEN)
"""Names that a project's commands cannot have."""
