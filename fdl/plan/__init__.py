"""From a selection to a Plan: one value that says what would run."""
