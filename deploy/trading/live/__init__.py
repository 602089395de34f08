"""The live trader of a slot: sessions, accounts, database records, arena, monitor, start."""
