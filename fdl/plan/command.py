"""A selected command -> its plan: what was typed is checked first, as far as its program is known.

Imported on the warm path.
"""

from __future__ import annotations

from fdl.manifest.select.level import RUN
from fdl.plan.planner import IN_CONTAINER, UNCHECKED, Planner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fdl.manifest.select.command import Selection
    from fdl.manifest.select.level import Level
    from fdl.manifest.select.project import Project
    from fdl.plan.planner import Host
    from fdl.plan.value import Plan


def plan_of(selected: Selection, project: Project, host: Host) -> Plan:
    """What a selected command of a project runs; nothing is started.

    Args:
        selected: A selection that runs.
        project: The project.
        host: Where it is taken to run, with the global flags of the call.

    Raises:
        ManifestError: The command contradicts itself, or its variables cannot be settled.
        UsageError: The arguments do not fit the command.
    """
    planner = Planner(
        project.directory,
        host,
        keeps=project.writes_cache,
        secrets=project.secrets,
    )
    plan = planned(selected, planner)
    for note in plan.notes:
        if note.endswith((IN_CONTAINER, UNCHECKED)):
            project.warn(note)
    return plan


def planned(selected: Selection, planner: Planner) -> Plan:
    """What a selected command runs, by a planner; see :func:`plan_of`."""
    if selected.kind == RUN:
        return planner.run(selected.level, selected.name, selected.words)
    from fdl.plan.arguments import arguments
    from fdl.programs.schema import known

    level, preset, tail = selected.level, selected.preset, selected.words
    level = planner.with_values(level, preset)
    schema = known(level, keep=planner.keeps)
    if schema is None:
        from fdl.plan.generate import refuse_empty

        refuse_empty(level, preset)
    made = arguments(level, preset, tail, schema)
    takes = made.schema
    if takes is not None:
        from fdl.plan.check import check_options, check_tail

        check_options(takes, level, preset)
        command, env = level.typed(*([preset] if preset else [])), level.manifest.env
        # A second preset cannot follow the first one.
        presets = () if preset else tuple(level.commands)
        check_tail(takes, made.tail, command, level.typed(), presets, env, made.filled)
    plan = planner.entry(level, preset, made)
    if takes is not None and takes.foreign:
        from fdl.plan.check import note

        said = note(takes, level, preset)
        plan.notes += [said] if said else []
    if schema is None and preset is None and tail:
        _note_slip(plan, level, tail[0])
    return plan


def _note_slip(plan: Plan, level: Level, word: str) -> None:
    """Note the nearest preset: only an unknown schema could tell whether the word is one."""
    from fdl.base.suggest import nearest

    meant = nearest(word, level.commands)
    if meant is not None:
        plan.notes.append(
            f"`{word}` is passed to the program; the nearest preset is `{level.typed(meant)}`"
        )
