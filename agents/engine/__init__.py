"""Programs: populations of members that act and learn together on one environment."""
