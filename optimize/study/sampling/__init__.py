"""Samplers and pruners that see a batch of concurrent trials consistently."""
