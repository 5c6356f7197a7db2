"""What stands on each help page. The first page starts as fast as a command."""

from __future__ import annotations

import sys

from fdl.base import output
from fdl.base.errors import FdlError, UsageError
from fdl.base.layout import Page, Row, terminal_width
from fdl.base.secrets import REDACTED, is_secret
from fdl.base.shell_words import compose, join, quote
from fdl.cli.builtins import summary
from fdl.manifest.builtins import PANELS, RESERVED
from fdl.manifest.node import origin, text, texts
from fdl.manifest.select.command import Selection
from fdl.manifest.select.level import PRESET, RUN, SECTIONS, Level
from fdl.manifest.words import ALL_GROUPS
from fdl.plan.arguments import arguments
from fdl.plan.generate import settings
from fdl.plan.redaction import redacted
from fdl.plan.value import Plan
from fdl.programs.parameters.parser import argument_rows, option_tables, slots
from fdl.programs.schema import failure, known
from fdl.version import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fdl.base import tables as drawn
    from fdl.manifest.node import Node
    from fdl.manifest.select.project import Project
    from fdl.plan.value import Flag
    from fdl.programs.parameters.contract import Schema

    Ask = Callable[[Level], Schema | None]
    """Level -> what is known, or can be learned, about the arguments of its program."""

    Describe = Callable[[str], str | None]
    """Directory -> description of the manifest there, None where there is none to read."""


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
    Row("--on HOST,HOST", "Run the ranks of a command on hosts; --sync copies the project first"),
    Row("--search tpe", "Let Optuna choose the values, with --trials N --goal METRIC:min"),
)
_NAMES = (
    "--help, --version, --env NAME, -v, --quiet, --ansi, --no-ansi, --no-append, --dry-run, "
    "--json, --yes, --force, --jobs N, --each"
)


def _front(
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
        page.prose("Write a project around a script that exists: `fdl adopt train.py`.")
        page.prose("Start a project with `fdl init demo`.")


_DEFAULTS = (
    ("ddp", "mode"), ("ddp", "anchor"), ("training", "epochs"), ("training", "batch_size"),
    ("training", "lr"), ("training", "seed"),
)  # fmt: skip


def render(
    help_: Selection | None,
    project: Project | None,
    palette: output.Palette,
    width: int,
    ask: Ask = known,
) -> str:
    """One help page as text; without a project that can be read, fdl's own.

    By itself a page starts no program: ``ask`` says where the schemas of programs come from.

    Raises:
        ManifestError: The command the page is about contradicts itself; never another command.
        UsageError: The program has no group of options of the wanted name.
    """
    if help_ is None or project is None or not (help_.name or help_.level.names):
        front = Page(palette, width)
        if help_ is None or project is None:
            _front(front, project)
        else:
            level, full = help_.level, help_.group == ALL_GROUPS
            rows = [_command_row(level, name, project.describe) for name in level.commands]
            _front(front, project, level.description, rows, full=full)
        return front.render()
    # Only the first page starts as fast as a command.
    from fdl.base.tables import Page as DrawnPage

    page = DrawnPage(palette, width)
    if help_.kind == RUN:
        _run(page, help_.level, help_.name)
        return page.render()
    taken = ask(help_.level)
    schema, path = _chosen(help_, taken)
    if help_.group and (help_.name or help_.group != ALL_GROUPS):
        _options(page, help_, schema)
    elif help_.kind == PRESET:
        _preset(page, help_, taken)
    else:
        _command(page, help_, project.describe, schema, path)
    return page.render()


def print_page(wanted: Selection | None, project: Project | None, ask: Ask = known) -> None:
    """Print a help page that was asked for; only with another ``ask`` programs are asked in turn.

    Raises:
        FdlError: As for :func:`render`.
    """
    text = render(wanted, project, output.palette(sys.stdout), terminal_width(sys.stdout), ask)
    output.write(sys.stdout, text)


def _chosen(help_: Selection, schema: Schema | None) -> tuple[Schema | None, list[str]]:
    """What the program takes, or the subcommand that was typed; and the words of that one."""
    if schema is None or not schema.commands:
        return schema, []
    made = arguments(help_.level, help_.preset, help_.words, schema)
    return made.schema, list(help_.words[: len(help_.words) - len(made.tail)])


def _command(
    page: Page, wanted: Selection, describe: Describe, schema: Schema | None, path: list[str]
) -> None:
    """The page of a command, or of a subcommand of its program."""
    level = wanted.level
    presets = [*_presets(level)] if level.entry and not path else []
    others = [name for name in level.commands if name not in presets] if not path else []
    own = schema.commands if schema else {}
    placeholder = f"<{level.manifest.node.text('arg-name') or 'preset'}>"
    purpose = schema.description if schema else None
    typed = level.typed(*path)
    page.title(typed, purpose if path else level.description or purpose)
    named = [
        slot for slot, names in ((placeholder, presets), ("<command>", [*others, *own])) if names
    ]
    words = [f"[{'|'.join(named)}]"] if named else []
    words += _argument_slots(schema) if level.entry else []
    page.usage(" ".join([typed, *words]))
    page.table(
        "Arguments",
        [
            *(argument_rows(schema.parameters) if schema else []),
            *(_preset_rows(level, placeholder, presets) if presets else []),
        ],
    )
    page.table("Commands", (_command_row(level, name, describe) for name in others))
    page.table("Commands of the program", (Row(name, one.description) for name, one in own.items()))
    for heading, rows in _option_tables(level, schema, wanted.group):
        page.table(heading, rows)
    if level.entry:
        _entry(page, level, schema)


def _options(page: Page, wanted: Selection, schema: Schema | None) -> None:
    """The options of one group, or of all, of a command's program."""
    level = wanted.level
    typed = level.typed(*([wanted.name] if wanted.name else []))
    usage = " ".join([typed, *_argument_slots(schema)])
    page.usage(usage)
    try:
        tables = _option_tables(level, schema, wanted.group)
    except UsageError as problem:
        problem.see = (usage, level.typed())
        raise
    for heading, rows in tables:
        page.table(heading, rows)


def _argument_slots(schema: Schema | None) -> list[str]:
    """What the program takes, on a usage line."""
    if schema is None:
        return ["[ARGS]"]
    return [*(["[OPTIONS]"] if schema.options else []), *slots(schema.parameters)]


def _option_tables(level: Level, schema: Schema | None, group: str) -> list[tuple[str, list[Row]]]:
    again = Row("    --refresh-schema", "Ask the program again which arguments it takes")
    common = [again] if level.entry else []
    if schema is None:
        return option_tables((), {}, common, group)
    return option_tables(schema.parameters, schema.collapsed, common, group)


def _preset_rows(level: Level, placeholder: str, presets: list[str]) -> Iterator[Row]:
    yield Row(placeholder, "Named settings to run with")
    for name in presets:
        yield Row(name, level.commands[name].text("description") or "", depth=1)


def _entry(page: Page, level: Level, schema: Schema | None) -> None:
    service = level.manifest.node.text("docker")
    page.table(
        "Entry",
        [Row(_script(level.entry), aside=f"in docker service {service}" if service else "")],
    )
    _dependencies(page, level.root, level.spec)
    merged = settings(level.manifest.node, None)
    page.table(
        "Defaults",
        (
            Row(field, _shown(node, field), origin(node, level.root))
            for section, field in _DEFAULTS
            if (node := merged[section].get(field))
        ),
    )
    if schema is None or not schema.strict:
        page.prose("Unknown arguments are passed to the program unchanged.")
    if schema is None and failure(level):
        page.prose(
            "The program did not tell fdl which arguments it takes. "
            f"`{level.typed('--refresh-schema')}` asks again and shows the error."
        )


def _preset(page: drawn.Page, wanted: Selection, schema: Schema | None) -> None:
    level, name = wanted.level, wanted.name
    spec = level.commands[name]
    made = arguments(level, name, wanted.words, schema)
    schema = made.schema
    page.title(level.typed(name), spec.text("description"))
    page.usage(" ".join([level.typed(name), *_argument_slots(schema)]))
    merged = settings(level.manifest.node, spec)
    page.table(
        "Settings",
        (
            Row(f"{section}.{field}", _shown(node, field), origin(node, level.root))
            for section in SECTIONS
            for field, node in merged[section].items()
        ),
    )
    flags = made.flags
    start = flags[0].index if flags else len(made.argv)
    secrets = made.argv[:start] if level.entry and level.entry.secret else []
    argv = _printable("entry", made.argv, flags, secrets).argv
    groups = [argv[flag.index : flag.index + flag.count] for flag in flags]
    page.table(
        "Options",
        (
            Row(join(group), _declared(flag, schema), flag.origin)
            for flag, group in zip(flags, groups, strict=True)
            if flag.field.startswith("options.")
        ),
    )
    page.command("Runs", [*_in_groups(argv, flags), "[ARGS]"])
    _inside(page, level.manifest.node.text("docker"))
    _question(page, level, spec)
    _dependencies(page, level.root, spec, level.spec)


def _in_groups(argv: list[str], flags: list[Flag]) -> Iterator[str]:
    """The words of a command line; each flag with its values is one item."""
    place = 0
    for flag in flags:
        yield from map(quote, argv[place : flag.index])
        place = flag.index + flag.count
        yield join(argv[flag.index : place])
    yield from map(quote, argv[place:])


def _declared(flag: Flag, schema: Schema | None) -> str:
    """What the program says about an option of a preset."""
    if schema is None:
        return ""
    shown = {one.display: one for one in schema.parameters}
    one = {**schema.options, **shown, **schema.spellings}.get(flag.name)
    if one is not None:
        return one.help or "(declared by the program)"
    return "(refused: the program has no such option)" if schema.strict else "(not declared)"


def _run(page: drawn.Page, level: Level, name: str) -> None:
    spec = level.commands[name]
    page.title(level.typed(name), spec.text("description"))
    from fdl.plan.declared import declared

    schema = declared(level, name)
    named = _argument_slots(schema) if schema else []
    page.usage(" ".join([level.typed(name), *named, "[-- ARGS [-- RUNNER_ARGS]]"]))
    if schema:
        page.table("Arguments", argument_rows(schema.parameters))
        for heading, rows in option_tables(schema.parameters, {}, ()):
            page.table(heading, rows)
    script, append = spec.text("run") or "", spec.text("append")
    # Where `append` has no `--` of its own, the second part appears only with its arguments.
    fixed = "--" in (append or "").split()
    placeholders = ["[ARGS]", *(["--", "[RUNNER_ARGS]"] if fixed else ["[-- RUNNER_ARGS]"])]
    secrets = [
        str(node.value) for key in ("run", "append") if (node := spec.get(key)) and node.secret
    ]
    whole = compose(script, append, placeholders, str)
    page.verbatim("Runs", _printable("run", [whole], [], secrets).argv[-1].splitlines())
    _inside(page, spec.text("docker"))
    _question(page, level, spec)
    _dependencies(page, level.root, spec)
    page.prose(
        f"Type arguments after `--`: `{level.typed(name)} -- -x` adds `-x` to the command. "
        "Arguments after a second `--` stand after a `--` in the command, too."
    )


def _inside(page: Page, service: str | None) -> None:
    if service:
        wrapper = f"docker compose run --rm {quote(service)} bash -c '...'"
        page.table("Inside", [Row(f"docker service {service}", aside=wrapper)])


def _question(page: Page, level: Level, spec: Node) -> None:
    questions = [one.text("confirm") for one in (*level.scopes, spec)]
    if asked := next(filter(None, reversed(questions)), None):
        page.prose(f"Asks before it runs: {asked}")


def _dependencies(page: Page, root: str, *specs: Node | None) -> None:
    """What runs before a command, and which files decide whether it runs; the strongest first."""
    keys = ("needs", "inputs", "outputs")
    stated = {key: one for one in specs[::-1] if one for key in keys if one.get(key)}
    page.table(
        "Dependencies",
        (
            Row(key, ", ".join(texts(stated[key], key)), origin(stated[key].mapping[key], root))
            for key in keys
            if key in stated and texts(stated[key], key)
        ),
    )


def _command_row(level: Level, name: str, describe: Describe) -> Row:
    """One command of a list; a broken one is listed and says so."""
    spec = level.commands[name]
    own = spec.text("description")
    if not level.names and name in RESERVED:
        return Row(name, own or "", "(unreachable: a built-in command has this name)")
    try:
        kind = level.kind(name)
        folder = level.child_directory(name)
    except FdlError:
        return Row(name, own or "", f"(broken: `{level.typed(name)}` says why)")
    if own:
        return Row(name, own)
    if kind == RUN:
        return Row(name, first_line(spec.get("run")))
    if kind == PRESET:
        return Row(name, "", "(preset)" if level.entry else "(broken: a preset needs an `entry`)")
    child = describe(folder)
    return Row(name, child) if child else Row(name, "", "(sub-command)")


def first_line(script: Node | None) -> str:
    """The first line of a script in the manifest, without its secrets."""
    lines = _script(script).strip().splitlines()
    return f"{lines[0]} ..." if len(lines) > 1 else "".join(lines)


def _presets(level: Level) -> Iterator[str]:
    """The presets of a level; a broken command is none."""
    for name in level.commands:
        try:
            if level.kind(name) == PRESET:
                yield name
        except FdlError:
            continue


def _shown(node: Node, name: str = "") -> str:
    """A value as text, unless its mark or its name says that it is a secret."""
    if node.secret or is_secret(name, node.value):
        return REDACTED
    if isinstance(node.value, list):
        return ", ".join(_shown(item) for item in node.value)
    if isinstance(node.value, dict):
        return ", ".join(f"{key} {_shown(child, key)}" for key, child in node.value.items())
    return text(node.value)


def _script(node: Node | None) -> str:
    """A command line of the manifest, without its secrets."""
    if node is None:
        return ""
    line = str(node.value)
    return _printable("run", [line], [], [line] if node.secret else []).argv[0]


def _printable(kind: str, argv: list[str], flags: list[Flag], secrets: list[str]) -> Plan:
    """A plan to take printable words from; where it would run is left open."""
    made = Plan(kind=kind, command=[], argv=argv, cwd="", root="", origin="")
    return redacted(made.replaced(flags=flags, secrets=secrets))
