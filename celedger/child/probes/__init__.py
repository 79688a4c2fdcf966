"""Probes observe one training from inside, in a diagnostic run: one module a verb, each with a
`Probe` that `observe` attaches. Loaded after the training has imported torch; no other code may
import them.
"""
