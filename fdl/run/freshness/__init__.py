"""Whether a command has to run again: its inputs and outputs by content, since the last success."""
