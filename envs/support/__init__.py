"""Errors, files, logs, names and terminals, for all packages."""
