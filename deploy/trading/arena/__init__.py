"""The arena of a slot: who has a seat, and what follows from the record."""
