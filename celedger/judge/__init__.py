"""What the trials of the ledger mean: is a commit worse (`state`), and which commit was the first
bad one (`bisection`)."""
