"""The step of the crypto environment as one pass in C++ over the rows, for CPUs.

It computes what torch's operations in `sweepd.envs.crypto.env` compute, to the bit, several times
faster. The C++ sources are in `src`, one file per subject: `lanes.h`, `state.h`, `orders.h`,
`observe.h`, `reward.h`.
"""
