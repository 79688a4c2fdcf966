"""The output for people and programs: text tables, JSON and figures, made from the ledger alone.

A view cannot write the ledger, never prints, and never runs anything: it returns strings and
dictionaries, or writes the one picture that was requested.
"""
