"""From a command line to what it means: a Plan to run, or a page to show."""
