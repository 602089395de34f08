"""The objective of studies on a market."""
