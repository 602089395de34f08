"""Parameters and policies of a trial for other libraries."""
