"""Diagnosis: why a training broke, from runs that never enter the record."""
