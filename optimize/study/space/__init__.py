"""Search spaces: dimensions, the tables that contain them, and the TOML files that define them."""
