"""Days of a slot's trader, computed again from the record: parity, certificates and their files."""
