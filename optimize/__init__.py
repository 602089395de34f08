"""The search daemon: trials on a SQL study, trained in batches."""
