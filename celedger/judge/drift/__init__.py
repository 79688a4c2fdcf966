"""Is this commit worse than its baseline? Gathers what the ledger holds, asks the statistics,
keeps the verdict, and runs more trials where they would settle a suspicion.

Each module is imported by itself: reading the history needs nothing of what runs trials.
"""
