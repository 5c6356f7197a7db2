"""From a command line to its meaning: a Plan to run, or a help page to show."""
