"""Populations of policies trained as one batched program, and frozen policies."""
