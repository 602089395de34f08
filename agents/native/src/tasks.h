// Tasks of the kernels on the pool of threads.

#pragma once

#include "pool.h"

// Run tasks 0 … count - 1, without subnormal numbers: the first moments of weights without
// gradients, as of hidden units that are off, decay to them within 800 steps of Adam, and rounding
// keeps them there, where an operation takes 100 cycles.
template <typename Task>
static void run_tasks(long count, int threads, Task task) {
    Pool::get().run(count, threads, task, Subnormals::zero);
}
