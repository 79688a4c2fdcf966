"""Diagnosis: why a training differs, stalls, leaks or does not learn. Reads what probes wrote."""
