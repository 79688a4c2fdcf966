"""The demo: a generated library with planted regressions, and its truth."""
