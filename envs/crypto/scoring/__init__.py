"""Scores of a policy: evaluation on windows, metrics, and how much of a score is luck."""
