"""What people and programs read: text tables, JSON and figures, made from the ledger alone.

A view cannot write the ledger, never prints, and never runs anything: it returns strings and
dictionaries or writes the one picture it was asked for.
"""
