"""The command line: one file a verb. Each parses, calls one use case, prints one view and
returns a status. Everything heavy is imported inside the verb, so that `--help` is instant."""
