"""Judge the trials of the ledger: what is worse (`state`), and which commit is the first bad one
(`bisection`)."""
