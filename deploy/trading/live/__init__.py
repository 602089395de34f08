"""The live trader of a slot: machine, session, accounts, database records, monitor, start."""
