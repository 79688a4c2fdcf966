"""Simulated lives of repositories, the judges that may read them, and the scores of what they say.

`life.py` holds what is true of a life, `noise.py` what a trial of it reports, `events.py` draws
lives, `scenes.py` sets fixed ones, `judges.py` drives what is judged, `score.py` holds every answer
beside the truth, `report.py` prints tables. `../lives.py` is the command.
"""
