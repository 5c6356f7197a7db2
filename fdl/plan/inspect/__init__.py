"""Values that the program of a command gets, where each comes from, and changing it there."""
