"""C++ for CPUs, compiled where it runs: `build`, and in `src` the headers that libraries share."""
