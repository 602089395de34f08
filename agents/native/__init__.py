"""CPU kernels in C++ for PPO, SAC and D3QN: outputs of policies, and whole updates.

`choice` decides whether they are used; torch does the same computation wherever they are not.
The C++ sources are in `src`, one file per subject: `vector.h`, `product.h`, `convolution.h`,
`network.h`, `loss.h`, `ppo.h`, `off_policy.h`, `d3qn.h`, `sac.h`, `policy.h`.
"""
