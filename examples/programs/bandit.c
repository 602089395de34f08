/* An epsilon-greedy player of a ten-armed bandit (Sutton and Barto, 2018, chapter 2), in C.

    cc -O2 -o bandit examples/programs/bandit.c -lm
    sweepd train --search-space examples/programs/bandit.toml --n-trials 30 \
        --env 'command:./bandit {epsilon} {step_size} {optimism} {seed}'
*/
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

enum { ARMS = 10 };

static uint64_t state;

/* A number in [0, 1), by xorshift64*. */
static double uniform(void) {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return (double)((state * 2685821657736338717u) >> 11) / 9007199254740992.0;
}

static double normal(void) {
    return sqrt(-2.0 * log(1.0 - uniform())) * cos(6.283185307179586 * uniform());
}

int main(int count, char **words) {
    if (count != 5) {
        fprintf(stderr, "usage: bandit EPSILON STEP_SIZE OPTIMISM SEED\n");
        return 2;
    }
    double epsilon = atof(words[1]), step_size = atof(words[2]), total = 0.0;
    double mean[ARMS], estimate[ARMS];
    const char *budget = getenv("SWEEPD_BUDGET"), *reports = getenv("SWEEPD_REPORTS");
    long steps = budget == NULL ? 10000 : atol(budget), every = steps / 20 + 1;
    FILE *file = reports == NULL ? stdout : fopen(reports, "a");
    if (file == NULL) {
        perror(reports);
        return 1;
    }
    state = strtoull(words[4], NULL, 10) * 2654435769u + 1u;
    for (int arm = 0; arm < ARMS; arm++) {
        mean[arm] = normal();
        estimate[arm] = atof(words[3]);
    }
    for (long step = 1; step <= steps; step++) {
        int arm = (int)(uniform() * ARMS);
        if (uniform() >= epsilon)
            for (int other = 0; other < ARMS; other++)
                if (estimate[other] > estimate[arm])
                    arm = other;
        double reward = mean[arm] + normal();
        estimate[arm] += step_size * (reward - estimate[arm]);
        total += reward;
        if (step % every == 0 || step == steps) {
            fprintf(file, "{\"step\": %ld, \"value\": %.6f}\n", step, total / (double)step);
            fflush(file); /* or the line waits in the buffer */
        }
    }
    return 0;
}
