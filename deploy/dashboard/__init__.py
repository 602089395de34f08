"""What people see of paper trading and of the search: in the terminal, and as a page on the loopback."""
