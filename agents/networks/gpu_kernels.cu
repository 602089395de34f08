// Kernels for GPUs, where starting an operation takes longer than its arithmetic.
//
// One thread per weight or row. Nothing is added across threads, so no number depends on an order.
// They compute what torch's operations compute (optimizer.py, activation.py, distributions.py,
// normaliser.py, and PPO._loss in agents/algorithms/ppo.py, which have the formulas), with other
// rounding, except for normalised observations.

// log β of Adam's moments.
#define LOG_BETA1 -0.105360515657826301f
#define LOG_BETA2 -0.00100050033358353350f
#define BETA1 0.9f
#define BETA2 0.999f

// AdamW for the weights of kinds x slots networks of `size` weights; the grid's y is the network.
// rates: (5, slots), of which the last three are 1 - η w, η and eps. step: after this update.
extern "C" __global__ void adam(float* flat, float* m, float* v, const float* grad,
                                const float* norms, const float* max_norm, const bool* active,
                                const float* step, const float* rates, int slots, int size) {
    int network = blockIdx.y, slot = network % slots;
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= size || !active[slot]) return;  // others keep every bit
    float decay = rates[2 * slots + slot], lr = rates[3 * slots + slot];
    float eps = rates[4 * slots + slot];
    float first = -expm1f(step[slot] * LOG_BETA1), second = -expm1f(step[slot] * LOG_BETA2);
    float clip = fminf(max_norm[slot] / (norms[network] + 1e-6f), 1.0f);
    long long at = (long long)network * size + i;
    float g = grad[at] * clip;
    float mean = m[at] + (1.0f - BETA1) * (g - m[at]);
    float square = BETA2 * v[at] + (1.0f - BETA2) * g * g;
    m[at] = mean;
    v[at] = square;
    flat[at] = flat[at] * decay - lr / first * (mean / (sqrtf(square / second) + eps));
}

// The derivative of the loss by a row's log-probability. Writes the log of the probability ratio,
// the value error, and the derivative by the critic's output.
static __device__ float row_loss(float log_prob, const float* stored, float value, float low,
                                 float high, float unit, float d_value, float value_avg,
                                 float value_std, float per_row, float* log_ratio, float* error,
                                 float* d_critic) {
    float log_r = log_prob - stored[0], advantage = stored[1], ratio = expf(log_r);
    float plain = advantage * ratio;
    float clipped = advantage * fminf(fmaxf(ratio, low), high);
    float e = (value_avg + value * value_std - stored[2]) / unit;
    *log_ratio = log_r;
    *error = e;
    *d_critic = (e < -1.0f ? -1.0f : e > 1.0f ? 1.0f : e) * d_value;  // NaN stays
    return plain <= clipped ? -plain * per_row : 0.0f;
}

// The loss of Gaussian actions, one thread per row. side: (rows, columns + 3), the action, its
// log-probability, its advantage and its return. sums: (rows, columns + 1), the terms of the
// gradients of log_std that depend on the action, and d(loss)/d(log-probability).
extern "C" __global__ void gaussian_loss(
    const float* outputs, const float* side, const float* values, const float* log_std,
    const float* low, const float* high, const float* unit, const float* d_value,
    const float* value_avg, const float* value_std, float* d_output, float* d_critic,
    float* log_ratio, float* error, float* sums, int stride, int slots, int rows, int columns) {
    int at = blockIdx.x * blockDim.x + threadIdx.x, slot = at / rows;
    if (slot >= slots) return;
    const float* mean = outputs + (long long)at * columns;
    const float* stored = side + (long long)at * (columns + 3);
    const float* deviation = log_std + (long long)slot * stride;
    float* d_mean = d_output + (long long)at * columns;
    float* terms = sums + (long long)at * (columns + 1);
    float squares = 0.0f, scale = 0.0f;
    for (int j = 0; j < columns; j++) {
        float u = (stored[j] - mean[j]) * expf(-deviation[j]);
        d_mean[j] = u * expf(-deviation[j]);
        terms[j] = u * u;
        squares += u * u;
        scale += deviation[j] + 0.918938533204672742f;  // log(2π) / 2
    }
    float d = row_loss(-0.5f * squares - scale, stored + columns, values[at], low[slot], high[slot],
                       unit[slot], d_value[slot], value_avg[slot], value_std[slot], 1.0f / rows,
                       log_ratio + at, error + at, d_critic + at);
    for (int j = 0; j < columns; j++) {
        d_mean[j] *= d;
        terms[j] *= d;
    }
    terms[columns] = d;
}

// The loss of a choice among `columns` options. side: (rows, 4).
extern "C" __global__ void categorical_loss(
    const float* outputs, const float* side, const float* values, const float* d_entropy,
    const float* low, const float* high, const float* unit, const float* d_value,
    const float* value_avg, const float* value_std, float* d_output, float* d_critic,
    float* log_ratio, float* error, int slots, int rows, int columns) {
    int at = blockIdx.x * blockDim.x + threadIdx.x, slot = at / rows;
    if (slot >= slots) return;
    const float* logits = outputs + (long long)at * columns;
    const float* stored = side + (long long)at * 4;
    float* d_logits = d_output + (long long)at * columns;
    float most = logits[0], total = 0.0f, entropy = 0.0f;
    for (int j = 1; j < columns; j++) most = logits[j] > most ? logits[j] : most;
    for (int j = 0; j < columns; j++) total += expf(logits[j] - most);
    float log_total = most + logf(total);
    for (int j = 0; j < columns; j++) {
        float log_p = logits[j] - log_total;
        entropy -= expf(log_p) * log_p;
    }
    int action = (int)stored[0];
    float d = row_loss(logits[action] - log_total, stored + 1, values[at], low[slot], high[slot],
                       unit[slot], d_value[slot], value_avg[slot], value_std[slot], 1.0f / rows,
                       log_ratio + at, error + at, d_critic + at);
    for (int j = 0; j < columns; j++) {
        float log_p = logits[j] - log_total;
        d_logits[j] = -expf(log_p) * (d + d_entropy[slot] * (log_p + entropy));
    }
    d_logits[action] += d;
}

// What follows a hidden layer, by its place in NATIVE of activation.py. NaN stays.
static __device__ float activated(float z, int activation) {
    if (activation == 0) return z < 0.0f ? 0.0f : z;
    if (activation == 1) return tanhf(z);
    if (activation == 2) return z / (1.0f + expf(-z));
    return z > 0.0f ? z : expm1f(z);
}

// Completes a hidden layer in place, from the products x (slots, rows, width): adds the bias and
// applies the activation. One thread per number; the grid's y is the slot.
extern "C" __global__ void hidden_layer(float* x, const float* bias, int stride, int rows,
                                        int width, int activation) {
    int slot = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * width) return;
    float* own = x + (long long)slot * rows * width + i;
    *own = activated(*own + bias[(long long)slot * stride + i % width], activation);
}

// The place of a row in a tensor (slots, steps, rows).
static __device__ long long place_of(int slot, int row, int rows, long long step, int steps) {
    return ((long long)slot * steps + step) * rows + row;
}

// Completes the outputs of actors, adding the bias to the products (slots, rows, columns), and
// samples x = μ + σ ε of Gaussians before tanh, one thread per row. Outputs and x are stored as
// those of a step, in outputs (slots, steps, rows, columns) and side (slots, steps + 1, rows,
// columns + 3); tanh x, or 0 for NaN, goes into `actions`. noises: (steps, rows of all slots,
// columns). stride: from slot to slot, of bias and log_std.
extern "C" __global__ void gaussian_sample(const float* products, const float* bias,
                                           const float* log_std, const float* noises,
                                           const long long* step, float* outputs, float* side,
                                           float* actions, int stride, int slots, int rows,
                                           int columns, int steps) {
    int at = blockIdx.x * blockDim.x + threadIdx.x, slot = at / rows, row = at % rows;
    if (slot >= slots) return;
    float* means = outputs + place_of(slot, row, rows, *step, steps) * columns;
    float* stored = side + place_of(slot, row, rows, *step, steps + 1) * (columns + 3);
    const float* noise = noises + (*step * slots * rows + at) * columns;
    for (int j = 0; j < columns; j++) {
        long long place = (long long)at * columns + j, weight = (long long)slot * stride + j;
        means[j] = products[place] + bias[weight];
        float x = means[j] + expf(log_std[weight]) * noise[j];
        float y = tanhf(x);
        stored[j] = x;
        actions[place] = y == y ? y : 0.0f;
    }
}

// The same for a choice per row: the first option at which the cumulative weight exceeds the random
// number times the total. Where outputs are NaN, it is the first one. side: (…, 4).
extern "C" __global__ void categorical_sample(const float* products, const float* bias,
                                              const float* noises, const long long* step,
                                              float* outputs, float* side, long long* actions,
                                              int stride, int slots, int rows, int columns,
                                              int steps) {
    int at = blockIdx.x * blockDim.x + threadIdx.x, slot = at / rows, row = at % rows;
    if (slot >= slots) return;
    float* logits = outputs + place_of(slot, row, rows, *step, steps) * columns;
    for (int j = 0; j < columns; j++)
        logits[j] = products[(long long)at * columns + j] + bias[(long long)slot * stride + j];
    float most = logits[0], total = 0.0f, below = 0.0f;
    for (int j = 1; j < columns; j++) most = logits[j] > most ? logits[j] : most;
    for (int j = 0; j < columns; j++) total += expf(logits[j] - most);
    float until = noises[*step * slots * rows + at] * total;
    int chosen = 0;
    for (int j = 0; j < columns; j++) {
        below += expf(logits[j] - most);
        chosen += below <= until;
    }
    side[place_of(slot, row, rows, *step, steps + 1) * 4] = chosen;
    actions[at] = chosen;
}

// Stores what a step of the environment gave, (rows of all slots) each, as that of `step`, and the
// observations, as they are (unless `raw` is null) and normalised, as those of the next step; the
// latter also in `read`, where actors read them. NaN stays. One thread per number of observations;
// the grid's y is the slot. steps: of rewards and ends; observations have one more.
extern "C" __global__ void store_step(const float* obs, const float* reward,
                                      const bool* terminated, const bool* truncated,
                                      const float* avg, const float* deviation,
                                      const float* clip, const long long* step, float* read,
                                      float* normalised, float* raw, float* rewards,
                                      bool* terminations, bool* truncations, int rows, int columns,
                                      int steps) {
    int slot = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= rows * columns) return;
    int row = i / columns, column = i % columns, network = slot * columns + column;
    long long at = (long long)slot * rows * columns + i;
    long long next = place_of(slot, row, rows, *step + 1, steps + 1) * columns + column;
    float x = (obs[at] - avg[network]) / deviation[network];
    x = x < -*clip ? -*clip : x > *clip ? *clip : x;
    read[at] = normalised[next] = x;
    if (raw) raw[next] = obs[at];
    if (column) return;
    long long now = place_of(slot, row, rows, *step, steps);
    rewards[now] = reward[slot * rows + row];
    terminations[now] = terminated[slot * rows + row];
    truncations[now] = truncated[slot * rows + row];
}
