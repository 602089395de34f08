"""The study's database: Optuna's storage, made safe for concurrent workers."""
