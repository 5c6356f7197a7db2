"""The commands of ``fdl flodl-hf``: each reads its arguments, calls a function and prints."""
