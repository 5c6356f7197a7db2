"""The run directory: its records, the state of a training in it, and how one is resumed."""
