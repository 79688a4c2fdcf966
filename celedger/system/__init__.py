"""The machine: processes, locks, devices, telemetry and the record of the environment.
Nothing here knows of commits, suites, the ledger or statistics."""
