"""Pure statistics: arrays in, frozen dataclasses out. No clock, no file, no process, no randomness.

Noise and verdicts: `noise`, `verdict`. History: `changepoints`. Bisect: `lineage` (which commit a
first bad commit makes bad), `likelihood` and `levels` (two unknown levels in unknown noise),
`firstbad` (the posterior), `choice` (what to measure next).
"""
