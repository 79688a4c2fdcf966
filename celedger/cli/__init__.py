"""The command line: a file for each verb, or for a few that belong together (`reading`). Each
parses, calls one use case, prints one view and returns a status. Everything heavy is imported
inside the verb, so that `--help` is instant."""
