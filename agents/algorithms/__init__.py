"""The algorithms that train members, their parameters, and the table of them."""
