"""Pure statistics: arrays in, frozen dataclasses out. No clock, no file, no process, no randomness.

The state of a line: `course` (its nouns), `history` (noise, levels and steps of a metric),
`incidents` (what is open, since which commit, whether it is over), `next_trial`. Bisect:
`two_sides` (is the bad end worse?), `lineage` (which commit a first bad commit makes bad),
`likelihood` and `levels` (two unknown levels in unknown noise), `firstbad` (the posterior),
`worlds` and `equal_seeds` (what equal seeds say), `choice` (what to measure next).
"""
