"""What stands on each help page."""

from __future__ import annotations

from fdl import __version__
from fdl.commands import BUILTINS
from fdl.dispatch.classify import PRESET, RUN
from fdl.dispatch.compose import compose, join, quote
from fdl.dispatch.generate import generate, settings, text
from fdl.dispatch.planner import entry_argv
from fdl.dispatch.walk import Help, Level
from fdl.errors import FdlError
from fdl.help.layout import Page, Row
from fdl.manifest import origin
from fdl.output import Palette

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from fdl.manifest import Node

    Describe = Callable[[str], str | None]
    """Directory -> description of the manifest there, None where there is none to read."""

_GLOBAL_OPTIONS = (
    Row("-h, --help", "Show help for the command named so far"),
    Row("-V, --version", "Show the version"),
    Row("-v, -vv, -vvv", "Tell more: verbose, debug, trace"),
    Row("-q, --quiet", "Tell less"),
    Row("--ansi, --no-ansi", "Force or forbid colour"),
    Row("--no-append", "Leave out the `append` arguments of a run command"),
    Row("--dry-run [--json]", "Before the command: show what would run, and run nothing"),
)

_DEFAULTS = (
    ("ddp", "mode"), ("ddp", "anchor"), ("training", "epochs"), ("training", "batch_size"),
    ("training", "lr"), ("training", "seed"),
)  # fmt: skip


def render(help_: Help | None, palette: Palette, width: int, describe: Describe) -> str:
    """One help page as text.

    Args:
        help_: What the page is about; None for a project without a (readable) manifest.
        palette: Styles of the stream the page goes to.
        width: Columns of that stream.
        describe: Looks up the description of a child manifest.

    Raises:
        ManifestError: The command the page is about contradicts itself; never another command.
    """
    page = Page(palette, width)
    if help_ is None:
        _project(page, None, describe)
    elif help_.kind == RUN:
        _run(page, help_.level, help_.name)
    elif help_.kind == PRESET:
        _preset(page, help_.level, help_.name)
    elif help_.level.names:
        _command(page, help_.level, describe)
    else:
        _project(page, help_.level, describe)
    return page.render()


def _project(page: Page, level: Level | None, describe: Describe) -> None:
    description = level.description if level else None
    page.title("fdl" if description else f"fdl {__version__}", description)
    page.usage("fdl [OPTIONS] COMMAND [ARGS]")
    page.table("Options", _GLOBAL_OPTIONS)
    page.table("Built-in commands", (Row(name, text) for name, text in BUILTINS.items()))
    if level is None:
        return
    page.table("Commands", (_command_row(level, name, describe) for name in level.commands))


def _command(page: Page, level: Level, describe: Describe) -> None:
    presets = _named(level, PRESET) if level.entry else []
    others = [name for name in level.commands if name not in presets]
    placeholder = f"<{level.manifest.node.text('arg-name') or 'preset'}>"
    page.title(level.typed(), level.description)
    slots = [slot for slot, names in ((placeholder, presets), ("<command>", others)) if names]
    arguments = ["[ARGS]"] if level.entry else []
    page.usage(" ".join([level.typed(), *([f"[{'|'.join(slots)}]"] if slots else []), *arguments]))
    if presets:
        page.table("Arguments", _preset_rows(level, placeholder, presets))
    page.table("Commands", (_command_row(level, name, describe) for name in others))
    page.table("Options", (Row("-h, --help", "Show this page"),))
    if level.entry:
        _entry(page, level)


def _preset_rows(level: Level, placeholder: str, presets: list[str]) -> Iterator[Row]:
    yield Row(placeholder, "Named settings to run with")
    for name in presets:
        yield Row(name, level.commands[name].text("description") or "", depth=1)


def _entry(page: Page, level: Level) -> None:
    service = level.manifest.node.text("docker")
    command = str(level.entry.value) if level.entry else ""
    page.table("Entry", [Row(command, aside=f"in docker service {service}" if service else "")])
    merged = settings(level.manifest.node, None)
    page.table(
        "Defaults",
        (
            Row(field, text(node.value), origin(node, level.root))
            for section, field in _DEFAULTS
            if (node := merged[section].get(field))
        ),
    )
    page.prose(
        "What fdl does not recognise as one of the names above goes to the entry as it stands."
    )


def _preset(page: Page, level: Level, name: str) -> None:
    spec = level.commands[name]
    page.title(level.typed(name), spec.text("description"))
    page.usage(f"{level.typed(name)} [ARGS]")
    merged = settings(level.manifest.node, spec)
    options = merged.pop("options")
    page.table(
        "Settings",
        (
            Row(f"{section}.{field}", _shown(node), origin(node, level.root))
            for section, fields in merged.items()
            for field, node in fields.items()
        ),
    )
    argv, flags = generate({"options": options}, 0, level.root)
    page.table(
        "Options",
        (
            Row(join(argv[flag.index : flag.index + flag.count]), aside=flag.origin)
            for flag in flags
        ),
    )
    tokens, generated = entry_argv(level, name)
    start = generated[0].index if generated else len(tokens)
    groups = [tokens[flag.index : flag.index + flag.count] for flag in generated]
    page.command("Runs", [*map(quote, tokens[:start]), *map(join, groups), "[ARGS]"])
    _inside(page, level.manifest.node.text("docker"))


def _run(page: Page, level: Level, name: str) -> None:
    spec = level.commands[name]
    page.title(level.typed(name), spec.text("description"))
    page.usage(f"{level.typed(name)} [-- ARGS [-- RUNNER_ARGS]]")
    script, append = spec.text("run") or "", spec.text("append")
    # Where `append` has no `--` of its own, the second part appears only with its arguments.
    fixed = "--" in (append or "").split()
    slots = ["[ARGS]", "--", "[RUNNER_ARGS]"] if fixed else ["[ARGS]", "[-- RUNNER_ARGS]"]
    page.verbatim("Runs", compose(script, append, slots, str).splitlines())
    _inside(page, spec.text("docker"))
    page.prose(
        f"Arguments follow a `--`: `{level.typed(name)} -- -x` adds `-x` to the command. What "
        "follows a second `--` goes behind a `--` of the command, to whatever it runs in turn."
    )


def _inside(page: Page, service: str | None) -> None:
    if service:
        wrapper = f"docker compose run --rm {quote(service)} bash -c '...'"
        page.table("Inside", [Row(f"docker service {service}", aside=wrapper)])


def _command_row(level: Level, name: str, describe: Describe) -> Row:
    """One command of a list; a broken one is listed and says so."""
    spec = level.commands[name]
    own = spec.text("description")
    if not level.names and name in BUILTINS:
        return Row(name, own or "", "(unreachable: a built-in command has this name)")
    try:
        kind = level.kind(name)
    except FdlError:
        return Row(name, own or "", f"(broken: `{level.typed(name)}` says why)")
    if own:
        return Row(name, own)
    if kind == RUN:
        return Row(name, _first_line(spec.text("run") or ""))
    if kind == PRESET:
        return Row(name, "", "(preset)" if level.entry else "(broken: a preset needs an `entry`)")
    child = describe(level.child_directory(name))
    return Row(name, child) if child else Row(name, "", "(sub-command)")


def _first_line(script: str) -> str:
    lines = script.strip().splitlines()
    return f"{lines[0]} ..." if len(lines) > 1 else "".join(lines)


def _named(level: Level, wanted: str) -> list[str]:
    """The commands of one kind; a broken command is of no kind."""
    found = []
    for name in level.commands:
        try:
            if level.kind(name) == wanted:
                found.append(name)
        except FdlError:
            continue
    return found


def _shown(node: Node) -> str:
    if isinstance(node.value, list):
        return ", ".join(_shown(item) for item in node.value)
    if isinstance(node.value, dict):
        return ", ".join(f"{key} {_shown(child)}" for key, child in node.value.items())
    return text(node.value)
