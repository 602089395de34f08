"""Studies of any program: how it is started, watched and ended, and what it reports."""
