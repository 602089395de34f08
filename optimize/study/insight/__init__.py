"""What a study's trials show: parameters, curves, cost and comparisons, as plain data."""
