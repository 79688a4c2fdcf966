"""Run trials: a trial is a checkout, a build, a process that is sampled, and rows in the ledger."""
