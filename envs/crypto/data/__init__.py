"""Bars: files, import from exchanges, checks, synthetic markets, and the `data` commands."""
