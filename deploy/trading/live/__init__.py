"""The live paper trader: what it does with every closed bar, what it remembers, and what stands beside it."""
