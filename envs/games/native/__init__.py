"""Steps of games as one pass in C++ over the rows, for CPUs: to the bit what torch computes."""
