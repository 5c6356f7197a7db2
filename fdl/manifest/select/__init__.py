"""From the words of a call to the command that they select, with its manifest and environment."""
