"""The interface of vectorized environments, random streams, fault latches, sizing."""
