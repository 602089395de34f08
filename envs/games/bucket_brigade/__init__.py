"""Bucket Brigade: firefighters decide where to work and what to signal."""
