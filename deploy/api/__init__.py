"""Policies of trials in Python: what `import sweepd` offers of deployment."""
