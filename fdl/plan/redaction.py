"""A Plan fit for print: every secret in it blanked out.

What is secret: values marked ``!secret``, values under a secret-looking flag or variable name,
everything out of an ``env_file``, and whatever those values have replaced.

Imported on the warm path of presets, which are announced, and of help.
"""

from __future__ import annotations

from fdl.base.masking import KNOWN, PLAN_VARIABLE, masked_script, secrets_of_script
from fdl.base.secrets import (
    REDACTED,
    SHORTEST,
    SHORTEST_WHOLE,
    behind_flags,
    is_secret,
    redact_tokens,
)
from fdl.base.shell_words import join
from fdl.manifest.node import Variable
from fdl.plan.value import Flag, Plan

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator


def redacted(plan: Plan) -> Plan:
    """A copy of the plan to print; the original is what runs."""
    know_secrets(plan)
    shown: Plan = plan.replaced(
        argv=_arguments(plan),
        typed=KNOWN.texts(redact_tokens(plan.typed)),
        flags=[_flag(flag) for flag in plan.flags],
        notes=KNOWN.texts(plan.notes),
        confirm=KNOWN.text(plan.confirm),
        env={},
        variables=[],
        secrets=[],
        kept=[],
        commands=[],
        subcommand=[],
        given=[],
    )
    shown.launch = shown.argv
    if plan.ranks is not None:
        shown.ranks = plan.ranks.replaced(rdzv=KNOWN.text(plan.ranks.rdzv))
    if plan.service:
        *wrapper, inner = plan.launch
        if plan.kind == "entry":
            inner = inner.replace(join(plan.argv), join(shown.argv))
        shown.launch = KNOWN.texts(wrapper)
        shown.launch.append(masked_script(_without_marked(plan, inner), plan.typed))
    for variable in plan.variables:
        known = _variable(variable)
        if variable.name in plan.env:
            shown.set(known)
        else:
            shown.variables.append(known)
    if PLAN_VARIABLE in plan.env:
        import json

        shown.env[PLAN_VARIABLE] = json.dumps(shown.inner(), separators=(",", ":"))
    return shown


def _arguments(plan: Plan) -> list[str]:
    if plan.kind == "run":
        *shell, script = plan.argv
        return [*shell, masked_script(_without_marked(plan, script), plan.typed)]
    tokens = redact_tokens(plan.argv)
    for flag in plan.flags:
        for place in range(flag.index, flag.index + flag.count):
            if flag.secret:
                tokens[place] = _blanked(flag.name, plan.argv[place])
            elif flag.secret is None:
                tokens[place] = plan.argv[place]
    return KNOWN.texts(tokens)


def _without_marked(plan: Plan, script: str) -> str:
    """A script without the parts that are marked as secret, which may be short."""
    for text in plan.secrets if plan.kind == "run" else ():
        if len(text) >= SHORTEST_WHOLE:
            script = script.replace(text, REDACTED)
    return script


def _blanked(name: str, token: str) -> str:
    if token == name:
        return token
    return f"{name}={REDACTED}" if token.startswith(f"{name}=") else REDACTED


def know_secrets(plan: Plan) -> None:
    """Let nothing print the secrets of a plan, from now on."""
    KNOWN.add(tuple(_hidden_texts(plan)))


def _hidden_texts(plan: Plan) -> Iterator[str]:
    """Every text of a plan that may appear nowhere."""
    public = {
        place
        for flag in plan.flags
        if flag.secret is None
        for place in range(flag.index, flag.index + flag.count)
    }
    yield from plan.secrets
    yield from behind_flags(plan.typed)
    yield from behind_flags([one for place, one in enumerate(plan.argv) if place not in public])
    if plan.kind == "run":
        yield from secrets_of_script(plan.argv[-1])
    for flag in plan.flags:
        if flag.secret:
            group = plan.argv[flag.index : flag.index + flag.count]
            yield from (
                token.removeprefix(f"{flag.name}=") for token in group if token != flag.name
            )
            yield from (value for value, _ in flag.losers)
    for one in plan.variables:
        # An env file also holds ordinary words, and all of it is secret.
        if one.secret and (is_secret(one.name, one.value) or len(one.value) >= SHORTEST):
            yield one.value
            yield from (value for value, _ in one.losers)


def _flag(flag: Flag) -> Flag:
    losers = [(REDACTED if flag.secret else value, place) for value, place in flag.losers]
    return flag.replaced(losers=losers)


def _variable(variable: Variable) -> Variable:
    def shown(value: str) -> str:
        return REDACTED if variable.secret else KNOWN.text(value)

    losers = [(shown(value), place) for value, place in variable.losers]
    return variable.replaced(value=shown(variable.value), losers=losers)
