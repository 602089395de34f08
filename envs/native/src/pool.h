// A pool of threads that lasts as long as the process.
//
// Not OpenMP: a second OpenMP runtime beside torch's would keep its own spinning threads, and none
// of them survives a fork. Here, a forked child starts a pool of its own.

#pragma once

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

// What operations do with subnormal numbers, the smallest ones, which most processors compute slowly.
enum class Subnormals { kept, zero };

// Rounds to nearest while it lives, whatever the thread's settings are.
struct StandardRounding {
#if defined(__x86_64__)
    unsigned before = _mm_getcsr();
    explicit StandardRounding(Subnormals are = Subnormals::kept) {
        _mm_setcsr(are == Subnormals::zero ? 0x9fc0 : 0x1f80);  // of results and operands
    }
    ~StandardRounding() { _mm_setcsr(before); }
#elif defined(__aarch64__)
    uint64_t before;
    explicit StandardRounding(Subnormals are = Subnormals::kept) {
        asm volatile("mrs %0, fpcr" : "=r"(before));
        set(are == Subnormals::zero ? 1 << 24 : 0);
    }
    ~StandardRounding() { set(before); }
    static void set(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
    explicit StandardRounding(Subnormals = Subnormals::kept) {}
#endif
};

class Pool {
    using Task = std::function<void(long task, int worker)>;

    // A piece of work. Threads hold it by shared_ptr, so one that wakes late finds no task in it.
    struct Work {
        const Task* task;
        long count;
        Subnormals subnormals;
        std::atomic<long> next{0}, left;
        Work(const Task* task, long count, Subnormals subnormals)
            : task(task), count(count), subnormals(subnormals), left(count) {}
    };

    std::mutex guard, calls;
    std::condition_variable wake, done;
    std::shared_ptr<Work> work;
    std::atomic<long> round{0};
    int wanted = 0, running = 0;
    pid_t owner = getpid();

    static void pause() {
#if defined(__x86_64__)
        _mm_pause();
#endif
    }

    void take(Work& work, int worker) {
        StandardRounding standard(work.subnormals);
        for (long task; (task = work.next.fetch_add(1)) < work.count;) {
            (*work.task)(task, worker);
            if (work.left.fetch_sub(1) == 1) {
                std::lock_guard<std::mutex> lock(guard);
                done.notify_all();
            }
        }
    }

    void serve(int worker) {
        long seen = 0;
        while (true) {
            // The steps of a rollout follow each other closely: look for a moment before sleeping.
            for (int i = 0; i < 2000 && round.load() == seen; i++) pause();
            std::shared_ptr<Work> mine;
            {
                std::unique_lock<std::mutex> lock(guard);
                wake.wait(lock, [&] { return round.load() != seen && worker < wanted; });
                seen = round.load();
                mine = work;
            }
            take(*mine, worker);
        }
    }

public:
    // Run tasks 0 … count - 1 on up to `threads` threads, this one among them.
    void run(long count, int threads, const Task& task,
             Subnormals subnormals = Subnormals::kept) {
        std::lock_guard<std::mutex> one_at_a_time(calls);
        if (threads > count) threads = count;
        auto mine = std::make_shared<Work>(&task, count, subnormals);
        if (threads > 1) {
            std::lock_guard<std::mutex> lock(guard);
            for (; running < threads - 1; running++)
                std::thread([this, worker = running + 1] { serve(worker); }).detach();
            work = mine;
            wanted = threads;
            round.fetch_add(1);
        }
        if (threads > 1) wake.notify_all();
        take(*mine, 0);
        // The others' last tasks: a moment for those of a rollout's steps, longer for an update's.
        for (int i = 0; i < 2000 && mine->left.load(); i++) pause();
        std::unique_lock<std::mutex> lock(guard);
        done.wait(lock, [&] { return !mine->left.load(); });
    }

    static Pool& get() {
        static Pool* pool = new Pool;
        // The threads of a forked child's parent are not in the child, and a lock may be held for
        // ever: leave that pool behind.
        if (pool->owner != getpid()) pool = new Pool;
        return *pool;
    }
};
