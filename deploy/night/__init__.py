"""The night of a slot: new bars, a study, the arena and a report, once per day."""
