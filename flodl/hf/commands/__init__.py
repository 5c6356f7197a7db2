"""The commands of ``fdl flodl-hf``: each reads its arguments, calls what does the work, prints."""
