"""Diagnosis: why a training changed, from runs that never enter the record."""
