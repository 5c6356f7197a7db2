"""What the commands below ``fdl libtorch`` take."""

from __future__ import annotations

from fdl.args.parameter import Parameter
from fdl.commands.builtin import DRY_RUN, JSON, Builtin, flag, optional

_TORCH = Parameter(
    "torch",
    shape="optional",
    completer="torch-versions",
    help="Version of torch, when it is not to be the usual one",
)
_SOURCE = Parameter(
    "source",
    shape="optional",
    completer="libtorch-sources",
    help="Where it comes from: `archive` (the official one, as usual), `wheel` (torch's Python "
    "package, through pip), or a local archive, wheel or folder",
)
_GLOBAL = flag("global", "Use the store of this user, not the project's")
_PATH = Parameter(
    "path",
    type="path",
    shape="optional",
    help="Unpack into this folder and leave the store alone",
)
_VARIANT_ID = optional("id", "Installed variant, such as precompiled/cu128", completer="variants")
_ARCHS = Parameter(
    "archs", shape="optional", help='GPU architectures, such as "6.1;12.0"; without, your cards\''
)

LIBTORCH = Builtin(
    "libtorch",
    children=(
        Builtin(
            "install",
            "Install what fits this machine, put it into use, show how to use it",
            parameters=(
                optional(
                    "variant",
                    "auto, cpu or a CUDA build such as cu128",
                    default="auto",
                    completer="libtorch-names",
                ),
                _TORCH,
                _SOURCE,
                _GLOBAL,
                DRY_RUN,
            ),
            handler="fdl.commands.libtorch:install",
        ),
        Builtin(
            "download",
            "The same with the choice spelled out",
            parameters=(
                flag("cpu", "The CPU variant, whatever cards there are"),
                Parameter(
                    "cuda",
                    shape="optional",
                    completer="cuda-versions",
                    help="The variant of this CUDA version: 12.6, 12.8 …",
                ),
                _TORCH,
                _SOURCE,
                _PATH,
                flag("no-activate", "Install only; what is in use stays in use"),
                _GLOBAL,
                DRY_RUN,
            ),
            handler="fdl.commands.libtorch:download",
        ),
        Builtin(
            "build",
            "Build from source for exactly your GPU architectures; takes hours, can be resumed",
            parameters=(
                _ARCHS,
                Parameter("jobs", type="int", default=6, help="Files to compile at the same time"),
                flag("docker", "Build in a container"),
                flag("native", "Build with the tools of this machine"),
                _TORCH,
                Parameter(
                    "repository",
                    shape="optional",
                    help="Git repository of the sources, when it is not PyTorch's own",
                ),
                _GLOBAL,
                DRY_RUN,
            ),
            handler="fdl.commands.libtorch_build:build",
        ),
        Builtin(
            "list",
            "List the installed variants",
            parameters=(JSON, _GLOBAL),
            handler="fdl.commands.libtorch:list_",
        ),
        Builtin(
            "info",
            "Describe the variant in use",
            parameters=(JSON, _GLOBAL),
            handler="fdl.commands.libtorch:info",
        ),
        Builtin(
            "activate",
            "Put an installed variant into use",
            parameters=(_VARIANT_ID, _GLOBAL, DRY_RUN),
            handler="fdl.commands.libtorch:activate",
        ),
        Builtin(
            "remove",
            "Delete an installed variant",
            parameters=(_VARIANT_ID, _GLOBAL, DRY_RUN),
            handler="fdl.commands.libtorch:remove",
        ),
        Builtin(
            "env",
            "Print what a shell, CMake, Cargo or direnv needs to use a variant",
            parameters=(
                _VARIANT_ID,
                Parameter(
                    "format",
                    choices=("shell", "cmake", "cargo", "json", "direnv"),
                    default="shell",
                    help="What to print it for",
                ),
                _GLOBAL,
            ),
            handler="fdl.commands.libtorch:env",
        ),
        Builtin(
            "exec",
            "Run one program with the variables of the variant in use",
            parameters=(
                Parameter(
                    "command",
                    kind="arg",
                    shape="list",
                    variadic=True,
                    help="The program and its arguments, behind `--`",
                ),
                _GLOBAL,
                DRY_RUN,
            ),
            handler="fdl.commands.libtorch:exec_",
        ),
        Builtin(
            "check",
            "Read from the installed libraries which cards and systems they run on",
            parameters=(
                optional("target", "Installed variant or a folder with lib/", completer="variants"),
                Parameter(
                    "archs",
                    shape="optional",
                    help='Cards to judge for, such as "6.1;12.0"; without, those of this machine',
                ),
                JSON,
                _GLOBAL,
            ),
            handler="fdl.commands.libtorch_check:check",
        ),
    ),
)
