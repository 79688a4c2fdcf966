"""Probes look at one training from inside, in a diagnostic run: one module a verb, each with a
`Probe` that `observe` attaches. Loaded once the training has torch; nothing else may import them.
"""
