"""From a command line to an exit code: global flags, built-in commands, help, completion."""
