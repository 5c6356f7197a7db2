"""YAML in which a tag means nothing: no object is made."""

from __future__ import annotations


def load(text: str) -> object:
    """The content of a text; a value with a tag that YAML does not define becomes a plain one.

    Raises:
        yaml.YAMLError: The text is not YAML.
        ValueError: A value is not one of its kind, such as a date.
    """
    import yaml

    class Loader(yaml.SafeLoader):
        """Makes mappings, lists and texts of unknown tags."""

    def untagged(loader: Loader, node: yaml.Node) -> object:
        if isinstance(node, yaml.MappingNode):
            return loader.construct_mapping(node, deep=True)
        if isinstance(node, yaml.SequenceNode):
            return loader.construct_sequence(node, deep=True)
        return node.value

    Loader.add_constructor(None, untagged)
    return yaml.load(text, Loader)  # noqa: S506 - a safe one
