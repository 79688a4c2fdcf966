"""What the trials of the ledger mean: is a commit worse (`drift`), and which commit was the first
bad one (`bisection`)."""
