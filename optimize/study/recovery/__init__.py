"""Heartbeats, registration of workers, and recovery of the trials of dead workers."""
