"""The crypto market: bars, features, folds, the environment and its metrics."""
