"""Experiment trackers (MLflow, W&B): a process beside the worker mirrors its trials to them."""
