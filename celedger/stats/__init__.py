"""Pure statistics: arrays in, frozen dataclasses out. No clock, no file, no process, no randomness.

Noise and verdicts: `noise`, `verdict`. History: `changepoints`. The state of a line: `course` (its
nouns), `incidents` (what is open, since which commit, whether it is over), `next_trial`. Bisect:
`lineage` (which commit a first bad commit makes bad), `likelihood` and `levels` (two unknown levels
in unknown noise), `firstbad` (the posterior), `choice` (what to measure next).
"""
