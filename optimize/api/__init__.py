"""Studies in Python: what `import sweepd` offers of the search."""
