"""Probes observe one training from inside, in a diagnostic run: one module a verb, each with a
class (TraceProbe in `trace`) that `attach` loads and `observe` calls. All but `attach` need torch.
"""
