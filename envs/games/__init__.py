"""Games as vectorized environments."""
