"""Probes observe one training from inside, in a diagnostic run: one module a kind, whose `attach`
is called once the training has torch. They name each other relatively, since the training imports a
copy of this folder, `celedger_probes`.
"""
