"""What must never be shown or recorded: telling secrets by names and formats.

A value is secret in three cases:

- Its YAML carries ``!secret``, or its variable or file is listed as secret.
- Its name ends in a word such as ``password``, ``api_key`` or ``token``. Names of tokenizers and
  data are excepted: ``pad_token``, ``sort_key``. ``!public`` switches the rule off.
- Its text has a known format: a token of a service, a password in a URL, a Bearer header, a
  webhook.

:mod:`fdl.base.masking` masks them wherever else their text occurs.

Imported on the warm path: nothing at module top.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

REDACTED = "<secret>"
"""Stands in print where a secret would."""

SHORTEST = 12
"""A known secret of at least this length is masked wherever it turns up; a shorter one would also
hide ordinary words."""

SHORTEST_MIXED = 6
"""The same for a secret with letters and digits: it is hardly an ordinary word."""

SHORTEST_WHOLE = 4
"""A shorter secret than those is masked where it is a whole value, if it has this length."""

_WORDS = frozenset(
    ("password", "passwords", "passwd", "passphrase", "pwd", "secret", "secrets", "apikey",
     "apitoken", "authtoken", "accesstoken", "accesskey", "secretkey", "privatekey", "token",
     "credential", "credentials", "pat", "cookie")
)  # fmt: skip
_EVEN_NUMBERS = frozenset(("password", "passwords", "passwd", "passphrase", "pwd", "pin"))
# What stands before `key`, for it to be a secret.
_OF_KEYS = frozenset(
    ("api", "access", "secret", "private", "encryption", "signing", "auth", "account", "ssh",
     "master", "service", "deploy", "subscription", "storage")
)  # fmt: skip
# What stands before `token` in the words of tokenizers and data.
_OF_TOKENIZERS = frozenset(
    ("pad", "padding", "eos", "bos", "unk", "mask", "cls", "sep", "image", "video", "audio",
     "start", "end", "stop", "special", "first", "last", "next", "new", "per", "prefix", "suffix",
     "middle", "boi", "eoi", "begin", "control", "decoder", "object", "sot", "eot", "fim", "box",
     "blank", "word", "input", "output", "by", "each", "single", "extra", "language", "lang",
     "response", "placeholder", "unknown", "boundary")
)  # fmt: skip
HINTS = (
    "://", "earer ", "hf_", "sk-", "ghp_", "gho_", "ghs_", "github_pat_", "AKIA", "ASIA", "xox",
    "glpat-", "AIza", "eyJ", "PRIVATE KEY", "r8_", "pypi-", "npm_", "dckr_pat_", "SG.", "asic ",
)  # fmt: skip
"""A text without any of these holds no known format, and ``re`` need not be loaded."""
_FORMATS = (
    # The password of a URL. The user name stays.
    r"(?<=://)(?P<user>[^\s/@:'\"]*):(?P<secret>[^\s/'\"]+)(?=@)",
    r"(?:https?://)?hooks\.slack\.com/(?:services|workflows)/(?P<s1>[\w/+-]+)",
    r"https?://(?:\w+\.)?discord(?:app)?\.com/api/webhooks/(?P<s2>[\w/-]+)",
    r"https?://[\w.-]*(?:webhook\.office|logic\.azure)\.com\S*?/(?P<s3>[\w@/-]{16,}\S*)",
    r"https?://api\.telegram\.org/bot(?P<s4>[\w:-]+)",
    r"\b[Bb]earer\s+(?P<s5>[\w.~+/=-]{8,})",
    r"\b[Bb]asic\s+(?P<s6>[A-Za-z0-9+/]{12,}={0,2})",
    r"(?P<s7>-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|$))",
    r"\b(?P<s8>hf_[A-Za-z0-9]{20,}|sk-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}|"
    r"github_pat_\w{20,}|(?:AKIA|ASIA)[0-9A-Z]{16}|xox[abeprs]-[\w-]{10,}|glpat-[\w-]{16,}|"
    r"AIza[\w-]{30,}|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,}|r8_\w{30,}|pypi-[\w-]{30,}|"
    r"npm_[A-Za-z0-9]{30,}|dckr_pat_[\w-]{20,}|SG\.[\w-]{16,}\.[\w-]{16,})",
)


def is_secret_name(name: str) -> bool:
    """Whether text under this name is kept from print: ``HF_TOKEN``, ``api-key``, ``dbPassword``.

    The last word decides; ``pad_token`` and ``sort_key`` are ordinary. So is the variable ``PWD``,
    the working folder.
    """
    known = _judged.get(name)
    if known is None:
        if len(_judged) >= _MOST_JUDGED:
            _judged.clear()
        known = _judged[name] = _is_secret_name(name)
    return known


_judged: dict[str, bool] = {}
"""Thousands of runs have settings of the same names."""
_MOST_JUDGED = 4096


def _is_secret_name(name: str) -> bool:
    words = _split(name) if name != "PWD" else []
    if not words:
        return False
    before, last = words[-2:-1], words[-1]
    if last in ("key", "keys"):
        return bool(before) and before[0] in _OF_KEYS
    if last == "token":
        return not before or before[0] not in _OF_TOKENIZERS
    return last in _WORDS or last.endswith(("password", "passwd"))


def is_secret(name: str, value: object) -> bool:
    """Whether a value is secret by its name or its format; ``max_tokens: 128`` is not secret."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    if isinstance(value, int | float):
        return is_secret_name(name) and _split(name)[-1] in _EVEN_NUMBERS
    return is_secret_name(name) or (isinstance(value, str) and _is_whole_token(value))


def is_distinct(text: str) -> bool:
    """Whether a secret is told from ordinary words, so that it is masked anywhere."""
    if len(text) >= SHORTEST:
        return not text.isspace()
    mixed = any(char.isdigit() for char in text) and any(char.isalpha() for char in text)
    return mixed and len(text) >= SHORTEST_MIXED


def plain_name(name: str) -> str:
    """``api_key`` for ``--api-key``, ``API_KEY`` and ``apiKey``."""
    return "_".join(_split(name))


def redact_tokens(argv: Sequence[str]) -> list[str]:
    """An argument vector to print: the values of ``--api-key VALUE`` and ``--token=VALUE`` gone."""
    shown = []
    flag = ""
    for token in argv:
        name, equals, value = token.partition("=")
        if flag and not token.startswith("--"):
            shown.append(REDACTED if is_secret(flag, typed(token)) else masked(token))
            flag = ""
            continue
        # An assignment as in `env A_TOKEN=x` hides its value just as `--a-token=x` does.
        names = name.startswith("-") or name.isidentifier()
        if equals and names and is_secret(name, typed(value)):
            shown.append(f"{name}={REDACTED}")
        else:
            shown.append(masked(token))
        flag = name if not equals and name.startswith("-") and is_secret_name(name) else ""
    return shown


def behind_flags(tokens: Sequence[str]) -> list[str]:
    """The values that :func:`redact_tokens` blanks out."""
    return [
        token if shown == REDACTED else token.partition("=")[2]
        for token, shown in zip(tokens, redact_tokens(tokens), strict=True)
        if token != shown
    ]


def masked(text: str) -> str:
    """A text without the secrets that have a known format."""
    if not any(hint in text for hint in HINTS):
        return text
    import re

    def mask(match: re.Match[str]) -> str:
        whole, start = match[0], match.start()
        name = match.lastgroup or ""
        begin, end = match.span("secret" if name in ("user", "secret") else name)
        return whole[: begin - start] + REDACTED + whole[end - start :]

    for pattern in _FORMATS:
        text = re.sub(pattern, mask, text)
    return text


def _is_whole_token(value: str) -> bool:
    return masked(value) == REDACTED


def typed(text: str) -> object:
    """A text as a number, if it is one."""
    try:
        return float(text)
    except ValueError:
        return text


def _split(name: str) -> list[str]:
    """The lower-case words of ``api-key``, ``API_KEY`` and ``apiKey``."""
    words, word, before = [], "", ""
    for char in name:
        if not char.isalnum() or (char.isupper() and before.islower()):
            words.append(word)
            word = ""
        if char.isalnum():
            word += char.lower()
        before = char
    return [word for word in (*words, word) if word]
