"""The example: a repository with planted regressions, its truth and its ledger."""
