"""A Plan fit for print: every secret in it blanked out.

What is secret: values marked ``!secret``, values under a secret-looking flag or variable name,
everything out of an ``env_file``, and whatever those values have replaced.

Imported on the warm path of presets, which are announced, and of help.
"""

from __future__ import annotations

from fdl.plan import PLAN_VARIABLE, Flag, Plan, Ranks, Variable
from fdl.shell_words import join
from flodl_shared.secrets import REDACTED, is_secret, redact_text, redact_tokens

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

# An env file also holds harmless words; shorter ones are hidden in their own place only, or
# `MODE=train` would blank out half of every command line.
_SHORTEST_OF_FILE = 12
# A marked part of a script is hidden in that script, if it is longer than a few letters.
_SHORTEST_MARKED = 4


def redacted(plan: Plan) -> Plan:
    """A copy of the plan to print; the original is what runs."""
    hidden = hidden_texts(plan)
    shown = Plan(
        kind=plan.kind,
        command=plan.command,
        argv=_arguments(plan, hidden),
        typed=[redact_text(token, hidden) for token in redact_tokens(plan.typed)],
        cwd=plan.cwd,
        root=plan.root,
        service=plan.service,
        flags=[_flag(flag) for flag in plan.flags],
        preset=plan.preset,
        origin=plan.origin,
        environment=plan.environment,
    )
    shown.depends, shown.slurm, shown.unchecked = plan.depends, plan.slurm, plan.unchecked
    shown.stop_timeout, shown.grace = plan.stop_timeout, plan.grace
    shown.notes = [redact_text(note, hidden) for note in plan.notes]
    shown.confirm = redact_text(plan.confirm, hidden)
    if plan.ranks is not None:
        ranks = plan.ranks
        meeting = redact_text(ranks.rdzv, hidden)
        shown.ranks = Ranks(ranks.here, ranks.nodes, meeting, ranks.max_restarts, ranks.gpus)
    if plan.service:
        *wrapper, inner = plan.launch
        if plan.kind == "entry":
            inner = inner.replace(join(plan.argv), join(shown.argv))
        shown.launch = [redact_text(token, hidden) for token in wrapper]
        shown.launch.append(_script(_without_marked(plan, inner), plan.typed, hidden))
    for variable in plan.variables:
        known = _variable(variable, hidden)
        if variable.name in plan.env:
            shown.set(known)
        else:
            shown.variables.append(known)
    if PLAN_VARIABLE in plan.env:
        import json

        shown.env[PLAN_VARIABLE] = json.dumps(shown.inner(), separators=(",", ":"))
    return shown


def redacted_script(script: str, hidden: Iterable[str]) -> str:
    """A shell text to print: without the given texts and without values behind secret flags."""
    return _script(script, (), [*hidden, *_forms(_behind_flags(_words(script)))])


def _arguments(plan: Plan, hidden: Sequence[str]) -> list[str]:
    if plan.kind == "run":
        *shell, script = plan.argv
        return [*shell, _script(_without_marked(plan, script), plan.typed, hidden)]
    tokens = redact_tokens(plan.argv)
    for flag in plan.flags:
        for place in range(flag.index, flag.index + flag.count):
            if flag.secret:
                tokens[place] = _blanked(flag.name, plan.argv[place])
            elif flag.secret is None:
                tokens[place] = plan.argv[place]
    return [redact_text(token, hidden) for token in tokens]


def _without_marked(plan: Plan, script: str) -> str:
    """A script without the parts that are marked as secret, which may be short."""
    for text in plan.secrets if plan.kind == "run" else ():
        if len(text) >= _SHORTEST_MARKED:
            script = script.replace(text, REDACTED)
    return script


def _blanked(name: str, token: str) -> str:
    if token == name:
        return token
    return f"{name}={REDACTED}" if token.startswith(f"{name}=") else REDACTED


def _script(script: str, typed: Sequence[str], hidden: Sequence[str]) -> str:
    """A shell text without secrets: the typed words at its end, then known texts, then flags."""
    cut = typed.index("--") if "--" in typed else len(typed)
    for part in (typed[:cut], typed[cut + 1 :]):
        if part:
            script = script.replace(join(part), join(redact_tokens(part)))
    script = redact_text(script, hidden)
    words = script.split()
    shown, end = "", 0
    for word, instead in zip(words, redact_tokens(words), strict=True):
        start = script.index(word, end)
        shown += script[end:start] + instead
        end = start + len(word)
    return shown + script[end:]


def hidden_texts(plan: Plan) -> list[str]:
    """Every text that may appear nowhere, also as the shell words that stand for it."""
    public = {
        place
        for flag in plan.flags
        if flag.secret is None
        for place in range(flag.index, flag.index + flag.count)
    }
    named = [token for place, token in enumerate(plan.argv) if place not in public]
    texts = [*plan.secrets, *_behind_flags(plan.typed), *_behind_flags(named)]
    if plan.kind == "run":
        texts += _behind_flags(_words(plan.argv[-1]))
    for flag in plan.flags:
        if flag.secret:
            group = plan.argv[flag.index : flag.index + flag.count]
            texts += [token.removeprefix(f"{flag.name}=") for token in group if token != flag.name]
            texts += [value for value, _ in flag.losers]
    for one in plan.variables:
        values = [one.value, *(value for value, _ in one.losers)]
        if one.secret and (is_secret(one.name, one.value) or len(one.value) >= _SHORTEST_OF_FILE):
            texts += values
    return _forms(texts)


def _words(script: str) -> list[str]:
    """The words of a shell text, as the program would get them."""
    if not any(mark in script for mark in "'\"\\"):
        return script.split()
    import shlex

    try:
        return shlex.split(script)
    except ValueError:
        # Shell syntax that is more than words; what stands behind flags is found word by word.
        return script.split()


def _forms(texts: Iterable[str]) -> list[str]:
    """Every text as it is and as the shell word that stands for it."""
    return [form for text in texts if text for form in {text, join([text])}]


def _behind_flags(tokens: Sequence[str]) -> list[str]:
    """The values that :func:`redact_tokens` blanks out."""
    return [
        token if shown == REDACTED else token.partition("=")[2]
        for token, shown in zip(tokens, redact_tokens(tokens), strict=True)
        if token != shown
    ]


def _flag(flag: Flag) -> Flag:
    return Flag(
        flag.index,
        flag.count,
        flag.name,
        flag.field,
        flag.origin,
        secret=flag.secret,
        losers=[(REDACTED if flag.secret else value, place) for value, place in flag.losers],
    )


def _variable(variable: Variable, hidden: Sequence[str]) -> Variable:
    def shown(value: str) -> str:
        return REDACTED if variable.secret else redact_text(value, hidden)

    return Variable(
        variable.name,
        shown(variable.value),
        variable.origin,
        secret=variable.secret,
        losers=[(shown(value), place) for value, place in variable.losers],
    )
