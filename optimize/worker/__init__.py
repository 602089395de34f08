"""The worker: takes trials in batches, trains them, keeps checkpoints and records."""
