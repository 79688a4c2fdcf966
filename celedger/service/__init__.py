"""Unattended work: git hooks that leave a note, a queue, and the worker that drains it."""
