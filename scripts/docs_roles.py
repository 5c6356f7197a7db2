"""For the site's Python reference: Markdown in place of the markup of Sphinx, plain defaults."""

from __future__ import annotations

import re
from typing import Any

import griffe

from fdl.scaffold.api_ref.scan import show_default

_ROLE = re.compile(r":\w+:`~?((?:[\w.]*\.)?)(\w+(?:\(\))?)`")
_LITERAL = re.compile(r"::(?=\n\n +\S)")


class Roles(griffe.Extension):
    """Replace roles such as ``:class:`~torch.Tensor``` by code, and ``::`` by one colon."""

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: Any) -> None:
        """Show the default of a setting."""
        show_default(attr)

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Change the docstring of an object that was just read."""
        if obj.docstring is not None:
            text = _ROLE.sub(r"`\2`", obj.docstring.value)
            obj.docstring.value = _LITERAL.sub(":", text)
