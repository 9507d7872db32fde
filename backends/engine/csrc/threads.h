// How the kernels' loops are shared out among threads.
#pragma once
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace lamina {

// Threads that help with a loop while they have a processor. Nobody waits for a thread that has none, which is where the
// barriers of OpenMP lose tenfold once other processes want the same cores: only for items that it has begun.
class Crew {
 public:
  static Crew& get() {
    static Crew& crew = *new Crew;  // never destroyed: its threads may outlive all else
    return crew;
  }

  // Call `run(index)` once for each index below `count`; returns when all are done.
  template <class Run>
  void share(int64_t count, const Run& run) {
    const int helpers = at::get_num_threads() - 1;
    if (helpers < 1 || count < 2) {
      for (int64_t index = 0; index < count; ++index) run(index);
      return;
    }
    const std::lock_guard<std::mutex> one_loop_at_a_time(mutex_);
    for (; num_helpers_ < helpers; ++num_helpers_) std::thread([this] { help_for_ever(); }).detach();
    run_ = [](const void* context, int64_t index) { (*(const Run*)context)(index); };
    context_ = &run;
    count_ = count;
    done_.store(0, std::memory_order_relaxed);
    left_.store(++serial_ << 32 | (uint64_t)count, std::memory_order_release);
    left_.notify_all();
    while (help()) continue;
    for (int spins = 0; done_.load(std::memory_order_acquire) != count; ++spins) pause(spins);
  }

 private:
  static constexpr int kSpins = 2000;  // of some 50 ns: longer than the gap between two layers

  static void pause(int spins) {
    if (spins > kSpins) return std::this_thread::yield();
#ifdef __x86_64__
    __builtin_ia32_pause();
#endif
  }

  // Run one item of the loop that is on, if one is left. Who takes an item keeps its loop from ending, so that what was
  // written before `left_` stays as it is; the serial number tells one loop from the next.
  bool help() {
    uint64_t left = left_.load(std::memory_order_acquire);
    while ((uint32_t)left)
      if (left_.compare_exchange_weak(left, left - 1, std::memory_order_acq_rel)) {
        run_(context_, count_ - (uint32_t)left);
        done_.fetch_add(1, std::memory_order_release);
        return true;
      }
    return false;
  }

  void help_for_ever() {
    for (int spins = 0;;) {
      const uint64_t left = left_.load(std::memory_order_acquire);
      if ((uint32_t)left) {
        help();
        spins = 0;
      } else if (++spins < kSpins) {
        pause(spins);
      } else {
        left_.wait(left);
        spins = 0;
      }
    }
  }

  std::mutex mutex_;
  int num_helpers_ = 0;
  uint64_t serial_ = 0;
  void (*run_)(const void*, int64_t) = nullptr;
  const void* context_ = nullptr;
  int64_t count_ = 0;
  std::atomic<uint64_t> left_{0};  // the loop's number and, in the low half, how many items nobody has taken
  std::atomic<int64_t> done_{0};
};

template <class Run>
void share(int64_t count, const Run& run) {
  Crew::get().share(count, run);
}

// The same for items too short to be taken one by one.
template <class Run>
void share_rows(int64_t count, const Run& run) {
  constexpr int64_t kGrain = 8;
  share((count + kGrain - 1) / kGrain, [&](int64_t part) {
    for (int64_t row = part * kGrain; row < std::min((part + 1) * kGrain, count); ++row) run(row);
  });
}

}  // namespace lamina
