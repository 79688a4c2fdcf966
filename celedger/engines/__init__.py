"""Trials on other machines: nodes of a cluster, each with a private clone and a private
ledger, in which an ordinary bench runs an ordinary trial.

An engine only brings an order to a node and lines back. The head, which is the command that a
person typed, is the only writer of the user's ledger.
"""
