// The engine's CPU kernels: one decoder layer over the flat tokens of a step, the logits, and each of their parts alone.
//
// Vectors are GCC's own, 16 floats wide, so that one text compiles for any CPU; the products of bfloat16 use AVX512-BF16
// and AMX where the compiler was told of them. A matrix (outputs, depth) comes packed in panels of 32 outputs: float as
// [panel][depth][32], bfloat16 as [panel][depth / 2][32][2]; so few rows stream it and many rows reuse a panel in cache.
// Loops are shared out among the threads that are free, see Crew.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/library.h>
#ifdef __AVX512BF16__
#include <immintrin.h>
#endif
#ifdef __AMX_BF16__
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <numeric>
#include <thread>
#include <utility>
#include <vector>

namespace {

using at::Tensor;
using BFloat16 = c10::BFloat16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));

constexpr int64_t kLanes = 16;
constexpr int64_t kPanel = 32;    // outputs in a panel: two vectors
constexpr int64_t kRows = 8;      // rows that the vector units work on at once
constexpr int64_t kTall = 32;     // rows that AMX works on at once; buffers of rows are padded to it
constexpr int64_t kQueries = 16;  // queries that share each look at keys and values
constexpr int64_t kChunk = 64;    // keys between two looks at the maximum
constexpr int64_t kAhead = 2048;  // bytes to prefetch ahead, measured

// ---- threads

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

// ---- vectors

inline Floats broadcast(float value) { return value - Floats{}; }

inline Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline Floats load(const BFloat16* from) {
  Halves value;
  std::memcpy(&value, from, sizeof value);
  return (Floats)(__builtin_convertvector(value, Words) << 16);
}

inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

inline void store(BFloat16* to, Floats value) {
#ifdef __AVX512BF16__
  const auto half = _mm512_cvtneps_pbh((__m512)value);
#else
  const Words bits = (Words)value, even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const auto half = __builtin_convertvector(value == value ? even : Words{} + 0x7fc0, Halves);
#endif
  std::memcpy(to, &half, sizeof half);
}

// The last vector of a run that is no multiple of 16: zeros stand for what is not there.
template <class T>
inline Floats load(const T* from, int64_t count) {
  if (count >= kLanes) return load(from);
  T padded[kLanes] = {};
  std::copy_n(from, count, padded);
  return load(padded);
}

template <class T>
inline void store(T* to, Floats value, int64_t count) {
  if (count >= kLanes) return store(to, value);
  T padded[kLanes];
  store(padded, value);
  std::copy_n(padded, count, to);
}

inline float sum(Floats value) {
  float total = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) total += value[lane];
  return total;
}

// exp to about one unit in the last place; 0 below -87, where floats end.
inline Floats exponential(Floats x) {
  const Floats low = broadcast(-87.0f), high = broadcast(88.0f);
  const auto is_zero = x < low;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Floats round = broadcast(12582912.0f);
  const Floats whole = (x * 1.44269504f + round) - round;
  const Floats rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Floats poly = broadcast(1.9875691500e-4f);
  for (float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    poly = poly * rest + factor;
  poly = poly * rest * rest + rest + 1.0f;
  const Words scale = (Words)(__builtin_convertvector(whole, Ints) + 127) << 23;
  return is_zero ? Floats{} : poly * (Floats)scale;
}

// Sums of 16 vectors as the lanes of one: four rounds that each halve the vectors.

inline Floats sums_of(Floats (&v)[16]) {
  constexpr Ints l8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
  constexpr Ints l4 = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
  constexpr Ints l2 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
  constexpr Ints l1 = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30};
  for (int i = 0; i < 8; ++i) v[i] = __builtin_shuffle(v[i], v[i + 8], l8) + __builtin_shuffle(v[i], v[i + 8], l8 + 8);
  for (int i = 0; i < 4; ++i) v[i] = __builtin_shuffle(v[i], v[i + 4], l4) + __builtin_shuffle(v[i], v[i + 4], l4 + 4);
  for (int i = 0; i < 2; ++i) v[i] = __builtin_shuffle(v[i], v[i + 2], l2) + __builtin_shuffle(v[i], v[i + 2], l2 + 2);
  return __builtin_shuffle(v[0], v[1], l1) + __builtin_shuffle(v[0], v[1], l1 + 1);
}

// ---- products: `sums[row]` gets a row's 32 outputs of one panel

template <int M>
void tile(const float* x, int64_t depth, const float* w, Floats (*sums)[2]) {
  Floats acc[M][2] = {};
  for (int64_t k = 0; k < depth; ++k, w += kPanel) {
    const Floats first = load(w), second = load(w + kLanes);
    __builtin_prefetch((const char*)w + kAhead), __builtin_prefetch((const char*)w + kAhead + 64);
    for (int m = 0; m < M; ++m) {
      acc[m][0] += x[m * depth + k] * first;
      acc[m][1] += x[m * depth + k] * second;
    }
  }
  std::memcpy(sums, acc, sizeof acc);
}

// acc += the products of 16 pairs of bfloat16 with one pair.
inline Floats add_pairs(Floats acc, uint32_t pair, Words pairs) {
#ifdef __AVX512BF16__
  return (Floats)_mm512_dpbf16_ps((__m512)acc, (__m512bh)_mm512_set1_epi32(pair), (__m512bh)pairs);
#else
  const uint32_t even = pair << 16, odd = pair & 0xffff0000u;
  float low, high;
  std::memcpy(&low, &even, 4), std::memcpy(&high, &odd, 4);
  return acc + low * (Floats)(pairs << 16) + high * (Floats)(pairs & 0xffff0000u);
#endif
}

template <int M>
void tile(const BFloat16* x, int64_t depth, const BFloat16* w, Floats (*sums)[2]) {
  Floats acc[M][2] = {};
  for (int64_t k = 0; k < depth; k += 2, w += 2 * kPanel) {
    const Words first = (Words)load((const float*)w), second = (Words)load((const float*)w + kLanes);
    __builtin_prefetch((const char*)w + kAhead), __builtin_prefetch((const char*)w + kAhead + 64);
    for (int m = 0; m < M; ++m) {
      uint32_t pair;
      std::memcpy(&pair, x + m * depth + k, sizeof pair);
      acc[m][0] = add_pairs(acc[m][0], pair, first);
      acc[m][1] = add_pairs(acc[m][1], pair, second);
    }
  }
  std::memcpy(sums, acc, sizeof acc);
}

template <class T, int... M>
void tile(const T* x, int64_t rows, int64_t depth, const T* w, Floats (*sums)[2], std::integer_sequence<int, M...>) {
  using Kernel = void (*)(const T*, int64_t, const T*, Floats(*)[2]);
  constexpr Kernel kernels[] = {tile<M + 1>...};
  kernels[rows - 1](x, depth, w, sums);
}

#ifdef __AMX_BF16__
bool may_use_amx() {  // Linux wants to be asked once per process
  static const bool granted = syscall(SYS_arch_prctl, 0x1023 /* ARCH_REQ_XCOMP_PERM */, 18 /* XTILEDATA */) == 0;
  return granted;
}

struct Tiles {  // all eight tiles of this thread, 16 rows of 64 bytes each, while it lives
  Tiles() {
    alignas(64) uint8_t config[64] = {1};
    for (int i = 0; i < 8; ++i) config[16 + 2 * i] = 64, config[48 + i] = 16;
    _tile_loadconfig(config);
  }
  ~Tiles() { _tile_release(); }
};

template <bool IsTall>
void amx_tile(const BFloat16* x, int64_t depth, const BFloat16* w, Floats (*sums)[2]) {
  const BFloat16* below = x + 16 * depth;
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (IsTall) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < depth; k += 32, w += 32 * kPanel) {
    _tile_loadd(4, x + k, depth * 2);
    _tile_loadd(6, w, 128);
    _tile_loadd(7, w + 32, 128);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (IsTall) {
      _tile_loadd(5, below + k, depth * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, sums, 128);
  _tile_stored(1, &sums[0][1], 128);
  if constexpr (IsTall) {
    _tile_stored(2, sums[16], 128);
    _tile_stored(3, &sums[16][1], 128);
  }
}
#endif

// Call `take(row, panel, sums)` for all rows and panels of x (rows, depth) times a packed matrix.
template <class T, class Take>
void vector_products(const T* x, int64_t rows, int64_t depth, const T* w, int64_t panels, Take take) {
  share(panels, [&](int64_t panel) {
    for (int64_t row = 0; row < rows; row += kRows) {
      Floats sums[kRows][2];
      const int64_t count = std::min(kRows, rows - row);
      tile(x + row * depth, count, depth, w + panel * depth * kPanel, sums, std::make_integer_sequence<int, kRows>{});
      for (int64_t i = 0; i < count; ++i) take(row + i, panel, sums[i]);
    }
  });
}

template <class Take>
void products(const float* x, int64_t rows, int64_t depth, const float* w, int64_t panels, Take take) {
  vector_products(x, rows, depth, w, panels, take);
}

template <class Take>
void products(const BFloat16* x, int64_t rows, int64_t depth, const BFloat16* w, int64_t panels, Take take) {
#ifdef __AMX_BF16__
  if (rows >= 4 && depth % 32 == 0 && may_use_amx()) {  // of fewer rows AMX computes no more per byte of weights
    share(panels, [&](int64_t panel) {
      Tiles tiles;
      for (int64_t row = 0; row < rows; row += kTall) {
        alignas(64) Floats sums[kTall][2];
        const int64_t count = std::min(kTall, rows - row);
        (count > 16 ? amx_tile<true> : amx_tile<false>)(x + row * depth, depth, w + panel * depth * kPanel, sums);
        for (int64_t i = 0; i < count; ++i) take(row + i, panel, sums[i]);
      }
    });
    return;
  }
#endif
  vector_products(x, rows, depth, w, panels, take);
}

// ---- what products are taken for

struct Put {  // out (rows, width) = product
  float* out;
  int64_t width;
  void operator()(int64_t row, int64_t panel, const Floats* sums) const {
    for (int64_t half = 0, at = panel * kPanel; half < 2 && at < width; ++half, at += kLanes)
      store(out + row * width + at, sums[half], width - at);
  }
};

struct Add {  // out (rows, width) += product
  float* out;
  int64_t width;
  void operator()(int64_t row, int64_t panel, const Floats* sums) const {
    for (int64_t half = 0, at = panel * kPanel; half < 2 && at < width; ++half, at += kLanes) {
      float* to = out + row * width + at;
      store(to, load(to, width - at) + sums[half], width - at);
    }
  }
};

template <class T>
struct Gate {  // out (rows, width) = silu(gate) * up; a panel holds 16 gates and their 16 ups
  T* out;
  int64_t width;
  void operator()(int64_t row, int64_t panel, const Floats* sums) const {
    const Floats gated = sums[0] / (1.0f + exponential(-sums[0])) * sums[1];
    store(out + row * width + panel * kLanes, gated, width - panel * kLanes);
  }
};

// ---- between the products

template <class T>
void normalise(const float* hidden, const int64_t* index, int64_t rows, int64_t width, const float* weight, float epsilon,
               T* out) {
  share_rows(rows, [&](int64_t row) {
    const float* from = hidden + (index ? index[row] : row) * width;
    Floats squares = {};
    for (int64_t i = 0; i < width; i += kLanes) {
      const Floats value = load(from + i, width - i);
      squares += value * value;
    }
    const float scale = 1.0f / std::sqrt(sum(squares) / width + epsilon);
    for (int64_t i = 0; i < width; i += kLanes)
      store(out + row * width + i, load(from + i, width - i) * scale * load(weight + i, width - i), width - i);
  });
}

template <class T>
struct Store {  // one layer's keys and values, each (pages, kv_heads, slots, dim)
  T *keys, *values;
  int64_t kv_heads, slots, dim;
  int64_t offset(int64_t page, int64_t head, int64_t slot) const { return ((page * kv_heads + head) * slots + slot) * dim; }
};

// Rotate dimension i with i + dim / 2.
template <class T>
inline void rotate(const float* from, const float* cosines, const float* sines, int64_t half, T* to) {
  for (int64_t i = 0; i < half; i += kLanes) {
    const int64_t count = half - i;
    const Floats a = load(from + i, count), b = load(from + half + i, count);
    const Floats c = load(cosines + i, count), s = load(sines + i, count);
    store(to + i, a * c - b * s, count);
    store(to + half + i, b * c + a * s, count);
  }
}

// heads (tokens, heads + 2 kv_heads, dim): rotated queries go out, rotated keys and plain values into the store.
template <class T>
void rotate_and_store(const float* heads, int64_t tokens, int64_t num_heads, const float* cosines, const float* sines,
                      const int64_t* positions, const int64_t* slots, Store<T> to, T* queries) {
  const int64_t half = to.dim / 2;
  share_rows(tokens, [&](int64_t token) {
    const float* from = heads + token * (num_heads + 2 * to.kv_heads) * to.dim;
    const float *c = cosines + positions[token] * half, *s = sines + positions[token] * half;
    for (int64_t head = 0; head < num_heads; ++head, from += to.dim)
      rotate(from, c, s, half, queries + (token * num_heads + head) * to.dim);
    const int64_t page = slots[token] / to.slots, slot = slots[token] % to.slots;
    for (int64_t head = 0; head < to.kv_heads; ++head, from += to.dim)
      rotate(from, c, s, half, to.keys + to.offset(page, head, slot));
    for (int64_t head = 0; head < to.kv_heads; ++head, from += to.dim)
      for (int64_t i = 0; i < to.dim; i += kLanes)
        store(to.values + to.offset(page, head, slot) + i, load(from + i, to.dim - i), to.dim - i);
  });
}

// ---- attention: up to 16 queries of one kv head look at the same pages, each up to its own limit

template <class T>
struct Look {
  const T* queries[kQueries];
  T* outs[kQueries];
  int64_t limits[kQueries];
  int64_t count = 0;
};

template <class T>
struct Chunk {  // where the keys and values of up to kChunk slots lie; spare slots repeat the last one and weigh nothing
  const T *keys[kChunk], *values[kChunk];
  int64_t begin, count;
  Chunk(const Store<T>& kv, int64_t head, const int32_t* pages, int64_t begin, int64_t end)
      : begin(begin), count(std::min(kChunk, end - begin)) {
    for (int64_t slot = 0; slot < kChunk; ++slot) {
      const int64_t at = begin + std::min(slot, count - 1), offset = kv.offset(pages[at / kv.slots], head, at % kv.slots);
      keys[slot] = kv.keys + offset, values[slot] = kv.values + offset;
    }
  }
};

struct Softmax {  // of one query, chunk after chunk
  float best = -INFINITY, total = 0;
  // Turn scores into weights below `seen`, and 0 above; returns by how much all that came before shrinks.
  float weigh(float* row, int64_t seen, int64_t count) {
    std::fill(row + std::clamp<int64_t>(seen, 0, count), row + kChunk, -INFINITY);
    Floats top = broadcast(best);
    for (int64_t slot = 0; slot < count; slot += kLanes) top = load(row + slot) > top ? load(row + slot) : top;
    float most = best;
    for (int64_t lane = 0; lane < kLanes; ++lane) most = std::max(most, top[lane]);
    Floats sums = {};
    for (int64_t slot = 0; slot < count; slot += kLanes) {
      const Floats weight = exponential(load(row + slot) - most);
      store(row + slot, weight);
      sums += weight;
    }
    const float shrink = std::exp(best - most);
    best = most;
    total = total * shrink + sum(sums);
    return shrink;
  }
};

// D is the dimension where the compiler may know it, else 0.
template <int D>
inline Floats dot(const float* a, const float* b, int64_t dim) {
  const int64_t n = D ? D : dim;
  Floats acc = {};
  for (int64_t i = 0; i < n; i += kLanes) acc += load(a + i, n - i) * load(b + i, n - i);
  return acc;
}

template <int D>
inline Floats dot(const BFloat16* a, const BFloat16* b, int64_t dim) {
  const int64_t n = D ? D : dim;
  Floats acc = {};
  int64_t i = 0;
#ifdef __AVX512BF16__
  for (; i + 32 <= n; i += 32)
    acc = (Floats)_mm512_dpbf16_ps((__m512)acc, (__m512bh)load((const float*)(a + i)), (__m512bh)load((const float*)(b + i)));
#endif
  for (; i < n; i += kLanes) acc += load(a + i, n - i) * load(b + i, n - i);
  return acc;
}

// out[query] (dim) += sum over slots of weights[query][slot] * values[slot]; W vectors of N queries at a time.
template <int N, int W, class T>
inline void add_values(const float (*weights)[kChunk], const T* const* values, int64_t count, int64_t from, int64_t dim, float* out) {
  Floats acc[N][W];
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < W; ++i) acc[n][i] = load(out + n * dim + from + i * kLanes, dim - from);
  for (int64_t slot = 0; slot < count; ++slot)
    for (int i = 0; i < W; ++i) {
      const Floats value = load(values[slot] + from + i * kLanes, dim - from);
      for (int n = 0; n < N; ++n) acc[n][i] += weights[n][slot] * value;
    }
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < W; ++i) store(out + n * dim + from + i * kLanes, acc[n][i], dim - from);
}

template <int N, int D, class T>
inline void add_values(const float (*weights)[kChunk], const T* const* values, int64_t count, int64_t dim, float* out) {
  if constexpr (D == 64) return add_values<N, 4>(weights, values, count, 0, 64, out);
  int64_t from = 0;
  for (; from + 4 * kLanes <= dim; from += 4 * kLanes) add_values<N, 4>(weights, values, count, from, dim, out);
  for (; from < dim; from += kLanes) add_values<N, 1>(weights, values, count, from, dim, out);
}

template <int D, class T>
void look(const Look<T>& task, const Store<T>& kv, int64_t head, const int32_t* pages, float scale, float* acc) {
  const int64_t end = *std::max_element(task.limits, task.limits + task.count), dim = D ? D : kv.dim;
  Softmax softmax[kQueries];
  std::fill_n(acc, task.count * dim, 0.0f);
  for (int64_t begin = 0; begin < end; begin += kChunk) {
    const Chunk<T> chunk(kv, head, pages, begin, end);
    alignas(64) float weights[kQueries][kChunk];
    for (int64_t slot = 0; slot < chunk.count; slot += kLanes) {
      for (int64_t i = 0; i < kLanes; ++i)
        for (int64_t at = 0; at < dim; at += 64 / sizeof(T)) __builtin_prefetch(chunk.values[slot + i] + at);
      for (int64_t query = 0; query < task.count; ++query) {
        Floats parts[kLanes];
        for (int64_t i = 0; i < kLanes; ++i) parts[i] = dot<D>(task.queries[query], chunk.keys[slot + i], dim);
        store(weights[query] + slot, sums_of(parts) * scale);
      }
    }
    for (int64_t query = 0; query < task.count; ++query) {
      const float shrink = softmax[query].weigh(weights[query], task.limits[query] - begin, chunk.count);
      if (begin)
        for (int64_t i = 0; i < dim; ++i) acc[query * dim + i] *= shrink;
    }
    int64_t query = 0;
    for (; query + 3 <= task.count; query += 3)
      add_values<3, D>(weights + query, chunk.values, chunk.count, dim, acc + query * dim);
    for (; query < task.count; ++query)
      add_values<1, D>(weights + query, chunk.values, chunk.count, dim, acc + query * dim);
  }
  for (int64_t query = 0; query < task.count; ++query)
    for (int64_t i = 0; i < dim; i += kLanes)
      store(task.outs[query] + i, load(acc + query * dim + i, dim - i) / softmax[query].total, dim - i);
}

// tiles (T, 4): row of the page table, first token, number of tokens, first position. queries, out (tokens, heads, dim).
template <class T>
void attend(const T* queries, int64_t num_heads, Store<T> kv, const int32_t* table, int64_t width, const int32_t* tiles,
            int64_t num_tiles, T* out) {
  const int64_t group = num_heads / kv.kv_heads;
  const float scale = 1.0f / std::sqrt((float)kv.dim);
  share(num_tiles * kv.kv_heads, [&](int64_t task) {
    const int32_t* tile = tiles + task / kv.kv_heads * 4;
    const int64_t head = task % kv.kv_heads;
    thread_local std::vector<float> acc;
    acc.resize(kQueries * kv.dim);
    Look<T> next;
    for (int64_t query = 0; query < tile[2] * group; ++query) {
      const int64_t token = query / group, at = ((tile[1] + token) * num_heads + head * group + query % group) * kv.dim;
      next.queries[next.count] = queries + at, next.outs[next.count] = out + at;
      next.limits[next.count++] = tile[3] + token + 1;
      if (next.count == kQueries || query + 1 == tile[2] * group) {
        (kv.dim == 64 ? look<64, T> : look<0, T>)(next, kv, head, table + tile[0] * width, scale, acc.data());
        next.count = 0;
      }
    }
  });
}

// ---- drawing: a pure function of one row of logits and its request's numbers

struct Candidate {
  float weight;
  int32_t id;
  // The heaviest first, of equals the lowest id.
  bool operator<(const Candidate& other) const { return weight != other.weight ? weight > other.weight : id < other.id; }
};

// The first of the largest logits; -1 where one is not a number, or the largest is infinite.
int64_t most_likely(const float* logits, int64_t size) {
  Floats top = broadcast(-INFINITY), check = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats value = load(logits + i);
    check += value * 0.0f;  // not a number after any that is none, and after the infinite
    top = value > top ? value : top;
  }
  float most = -INFINITY, odd = sum(check);
  for (; i < size; ++i) most = std::max(most, logits[i]), odd += logits[i] * 0.0f;
  for (int64_t lane = 0; lane < kLanes; ++lane) most = std::max(most, top[lane]);
  if (std::isinf(most) || (odd != 0.0f && std::any_of(logits, logits + size, [](float x) { return std::isnan(x); }))) return -1;
  return std::find(logits, logits + size, most) - logits;
}

double mass_of(const float* weights, int64_t size) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += weights[i + lane];
  for (; i < size; ++i) sums[0] += weights[i];
  return std::accumulate(sums, sums + kLanes, 0.0);
}

// Put the candidates that top_k and then top_p leave into `kept`, the heaviest first. `weights` reach up to 1.
void restrict(const float* weights, int64_t size, int64_t top_k, double top_p, std::vector<Candidate>& kept) {
  const size_t most = top_k ? std::min(top_k, size) : size;
  double total = top_p < 1 ? mass_of(weights, size) : INFINITY;
  for (float bar : {0x1p-6f, 0x1p-10f, 0x1p-14f, 0x1p-20f, 0.0f}) {  // only those above a bar are sorted: mostly a few
    kept.clear();
    double mass = 0;
    for (int64_t i = 0; i < size; i += kLanes) {
      const int64_t end = std::min(i + kLanes, size);
      float top = 0;
      for (int64_t at = i; at < end; ++at) top = weights[at] > top ? weights[at] : top;
      if (top < bar) continue;
      for (int64_t at = i; at < end; ++at)
        if (weights[at] >= bar) kept.push_back({weights[at], (int32_t)at}), mass += weights[at];
    }
    if (kept.size() >= most || (most == (size_t)size && mass > top_p * total)) break;  // top_p is of what top_k leaves
  }
  std::sort(kept.begin(), kept.end());
  if (kept.size() > most) kept.resize(most);
  if (top_p >= 1) return;
  if (most < (size_t)size)
    total = std::accumulate(kept.begin(), kept.end(), 0.0, [](double sum, Candidate each) { return sum + each.weight; });
  double running = 0;
  size_t needed = 0;
  while (needed < kept.size() && (running += kept[needed++].weight) < top_p * total) continue;
  kept.resize(needed);
}

// The first id whose running sum of weights, by id, exceeds `level` times all of them.
int64_t draw(const float* logits, int64_t size, float temperature, int64_t top_k, double top_p, double level,
             std::vector<float>& weights, std::vector<Candidate>& kept) {
  const int64_t best = most_likely(logits, size);
  if (best < 0 || temperature <= 0) return best;
  weights.resize(size);
  const float most = logits[best], divisor = std::max(temperature, 1e-6f);
  for (int64_t i = 0; i < size; i += kLanes)
    store(weights.data() + i, exponential((load(logits + i, size - i) - most) / divisor), size - i);
  double total = 0, running = 0;
  int64_t last = best;
  if (top_k || top_p < 1) {
    restrict(weights.data(), size, top_k, top_p, kept);
    std::sort(kept.begin(), kept.end(), [](Candidate a, Candidate b) { return a.id < b.id; });
    for (const Candidate& each : kept) total += each.weight;
    for (const Candidate& each : kept) {
      if ((running += each.weight) > level * total) return each.id;
      if (each.weight > 0) last = each.id;
    }
    return last;
  }
  constexpr int64_t kStretch = 1024;  // first find the stretch, then the id in it
  for (int64_t i = 0; i < size; i += kStretch) total += mass_of(weights.data() + i, std::min(kStretch, size - i));
  for (int64_t i = 0; i < size; i += kStretch) {
    const double mass = mass_of(weights.data() + i, std::min(kStretch, size - i));
    if (running + mass <= level * total) {
      running += mass;
      continue;
    }
    for (int64_t at = i; at < std::min(i + kStretch, size); ++at) {
      if (weights[at] > 0) last = at;
      if ((running += weights[at]) > level * total) return at;
    }
  }
  return last;
}

// ---- the borders to torch

template <class Run>
void by_type(const Tensor& like, Run run) {
  if (like.scalar_type() == at::kFloat) return run((float*)nullptr);
  TORCH_CHECK(like.scalar_type() == at::kBFloat16, "float32 or bfloat16, not ", like.scalar_type());
  run((BFloat16*)nullptr);
}

template <class T>
T* data(const Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "a tensor that is not contiguous");
  return tensor.data_ptr<T>();
}

template <class T>
Store<T> store_of(const Tensor& keys, const Tensor& values) {
  return {data<T>(keys), data<T>(values), keys.size(1), keys.size(2), keys.size(3)};
}

int64_t padded(int64_t rows) { return (rows + kTall - 1) / kTall * kTall; }

Tensor rows_like(const Tensor& like, int64_t rows, int64_t width) {
  return at::empty({padded(rows), width}, like.options()).narrow(0, 0, rows);
}

Tensor norm_op(const Tensor& hidden, const Tensor& weight, double epsilon, const Tensor& like) {
  const int64_t rows = hidden.size(0), width = hidden.size(1);
  Tensor result = rows_like(like, rows, width);
  by_type(like, [&]<class T>(T*) {
    const float *from = data<float>(hidden), *by = data<float>(weight);
    T* out = data<T>(result);
    normalise(from, nullptr, rows, width, by, epsilon, out);
  });
  return result;
}

// x (rows, depth) times a packed matrix, as float32 (rows, width).
Tensor product_op(const Tensor& x, const Tensor& packed, int64_t width) {
  const int64_t rows = x.size(0), depth = x.size(1), panels = packed.size(0);
  Tensor result = at::empty({rows, width}, x.options().dtype(at::kFloat)), tall = rows_like(x, rows, depth).copy_(x);
  by_type(x, [&]<class T>(T*) {
    const T *from = data<T>(tall), *w = data<T>(packed);
    const Put put{data<float>(result), width};
    products(from, rows, depth, w, panels, put);
  });
  return result;
}

// silu(gate) * up (rows, width) of x (rows, depth) times a packed matrix of gates and ups.
Tensor gated_op(const Tensor& x, const Tensor& packed, int64_t width) {
  const int64_t rows = x.size(0), depth = x.size(1), panels = packed.size(0);
  Tensor result = rows_like(x, rows, width), tall = rows_like(x, rows, depth).copy_(x);
  by_type(x, [&]<class T>(T*) {
    const T *from = data<T>(tall), *w = data<T>(packed);
    const Gate<T> gate{data<T>(result), width};
    products(from, rows, depth, w, panels, gate);
  });
  return result;
}

struct Place {  // where a step's tokens stand
  const float *cosines, *sines;
  const int64_t *positions, *slots;
  Place(const Tensor& cosines, const Tensor& sines, const Tensor& positions, const Tensor& slots)
      : cosines(data<float>(cosines)), sines(data<float>(sines)), positions(data<int64_t>(positions)), slots(data<int64_t>(slots)) {}
};

struct Plan {  // who looks where
  const int32_t *table, *tiles;
  int64_t width, num_tiles;
  Plan(const Tensor& table, const Tensor& tiles)
      : table(data<int32_t>(table)), tiles(data<int32_t>(tiles)), width(table.size(1)), num_tiles(tiles.size(0)) {}
};

// heads (tokens, heads + 2 kv_heads, dim) float32: returns the queries, stores keys and values.
Tensor rotate_op(const Tensor& heads, const Tensor& cosines, const Tensor& sines, const Tensor& positions, const Tensor& slots,
                 const Tensor& keys, const Tensor& values) {
  const int64_t tokens = heads.size(0), num_heads = heads.size(1) - 2 * keys.size(1);
  Tensor result = at::empty({tokens, num_heads, heads.size(2)}, keys.options());
  const Place at(cosines, sines, positions, slots);
  by_type(keys, [&]<class T>(T*) {
    const float* from = data<float>(heads);
    const Store<T> kv = store_of<T>(keys, values);
    T* queries = data<T>(result);
    rotate_and_store(from, tokens, num_heads, at.cosines, at.sines, at.positions, at.slots, kv, queries);
  });
  return result;
}

// queries (tokens, heads, dim): returns what they find, of the same size.
Tensor attend_op(const Tensor& queries, const Tensor& keys, const Tensor& values, const Tensor& table, const Tensor& tiles) {
  const int64_t num_heads = queries.size(1);
  Tensor result = at::empty_like(queries);
  const Plan plan(table, tiles);
  by_type(keys, [&]<class T>(T*) {
    const T* from = data<T>(queries);
    const Store<T> kv = store_of<T>(keys, values);
    T* out = data<T>(result);
    attend(from, num_heads, kv, plan.table, plan.width, plan.tiles, plan.num_tiles, out);
  });
  return result;
}

// One decoder layer: changes hidden (tokens, width) float32, and the store. `inner` is the width of the mlp.
void layer_op(const Tensor& hidden, const Tensor& attention_norm, const Tensor& qkv, const Tensor& output, const Tensor& mlp_norm,
              const Tensor& gate_up, const Tensor& down, const Tensor& cosines, const Tensor& sines, const Tensor& positions,
              const Tensor& slots, const Tensor& keys, const Tensor& values, const Tensor& table, const Tensor& tiles,
              int64_t num_heads, int64_t inner, double epsilon) {
  const int64_t tokens = hidden.size(0), width = hidden.size(1), dim = keys.size(3), kv_heads = keys.size(1);
  const int64_t looking = num_heads * dim, heads_width = looking + 2 * kv_heads * dim;
  const Tensor narrow_rows = rows_like(keys, tokens, std::max(width, looking)), query_rows = rows_like(keys, tokens, looking);
  const Tensor inner_rows = rows_like(keys, tokens, inner), head_rows = at::empty({tokens, heads_width}, hidden.options());
  const Place at(cosines, sines, positions, slots);
  const Plan plan(table, tiles);
  by_type(keys, [&]<class T>(T*) {
    float *residual = data<float>(hidden), *heads = data<float>(head_rows);
    T *x = data<T>(narrow_rows), *queries = data<T>(query_rows), *gated = data<T>(inner_rows);
    const float *first_norm = data<float>(attention_norm), *second_norm = data<float>(mlp_norm);
    const T *qkv_w = data<T>(qkv), *output_w = data<T>(output), *gate_up_w = data<T>(gate_up), *down_w = data<T>(down);
    const int64_t qkv_n = qkv.size(0), output_n = output.size(0), gate_up_n = gate_up.size(0), down_n = down.size(0);
    const Store<T> kv = store_of<T>(keys, values);
    normalise(residual, nullptr, tokens, width, first_norm, epsilon, x);
    products(x, tokens, width, qkv_w, qkv_n, Put{heads, heads_width});
    rotate_and_store(heads, tokens, num_heads, at.cosines, at.sines, at.positions, at.slots, kv, queries);
    attend(queries, num_heads, kv, plan.table, plan.width, plan.tiles, plan.num_tiles, x);
    products(x, tokens, looking, output_w, output_n, Add{residual, width});
    normalise(residual, nullptr, tokens, width, second_norm, epsilon, x);
    products(x, tokens, width, gate_up_w, gate_up_n, Gate<T>{gated, inner});
    products(gated, tokens, inner, down_w, down_n, Add{residual, width});
  });
}

// float32 logits (rows, vocabulary) of the hidden states at `index`.
Tensor logits_op(const Tensor& hidden, const Tensor& index, const Tensor& norm, double epsilon, const Tensor& head, int64_t vocabulary) {
  const int64_t rows = index.size(0), width = hidden.size(1), panels = head.size(0);
  Tensor result = at::empty({rows, vocabulary}, hidden.options()), narrow_rows = rows_like(head, rows, width);
  by_type(head, [&]<class T>(T*) {
    const float *from = data<float>(hidden), *by = data<float>(norm);
    const int64_t* at = data<int64_t>(index);
    const T* w = data<T>(head);
    T* x = data<T>(narrow_rows);
    const Put put{data<float>(result), vocabulary};
    normalise(from, at, rows, width, by, epsilon, x);
    products(x, rows, width, w, panels, put);
  });
  return result;
}

// One id (R,) per row of logits (R, V) float32, -1 for a row that is not made of numbers. numbers (R, 4) float64 are
// temperature, top_k, top_p and the level in [0, 1) to draw at.
Tensor draw_op(const Tensor& logits, const Tensor& numbers) {
  const int64_t rows = logits.size(0), size = logits.size(1);
  Tensor result = at::empty({rows}, logits.options().dtype(at::kLong));
  const float* from = data<float>(logits);
  const double* by = data<double>(numbers);
  int64_t* out = data<int64_t>(result);
  share(rows, [&](int64_t row) {
    thread_local std::vector<float> weights;
    thread_local std::vector<Candidate> kept;
    const double* number = by + 4 * row;
    out[row] = draw(from + row * size, size, number[0], number[1], number[2], number[3], weights, kept);
  });
  return result;
}

}  // namespace

TORCH_LIBRARY(lamina, library) {
  library.def("norm(Tensor hidden, Tensor weight, float epsilon, Tensor like) -> Tensor");
  library.def("product(Tensor x, Tensor packed, int width) -> Tensor");
  library.def("gated(Tensor x, Tensor packed, int width) -> Tensor");
  library.def(
      "rotate(Tensor heads, Tensor cosines, Tensor sines, Tensor positions, Tensor slots, Tensor(a!) keys, Tensor(b!) values)"
      " -> Tensor");
  library.def("attend(Tensor queries, Tensor keys, Tensor values, Tensor table, Tensor tiles) -> Tensor");
  library.def(
      "layer(Tensor(a!) hidden, Tensor attention_norm, Tensor qkv, Tensor output, Tensor mlp_norm, Tensor gate_up, Tensor down,"
      " Tensor cosines, Tensor sines, Tensor positions, Tensor slots, Tensor(b!) keys, Tensor(c!) values, Tensor table,"
      " Tensor tiles, int num_heads, int inner, float epsilon) -> ()");
  library.def("draw(Tensor logits, Tensor numbers) -> Tensor");
  library.def("logits(Tensor hidden, Tensor index, Tensor norm, float epsilon, Tensor head, int vocabulary) -> Tensor");
}

TORCH_LIBRARY_IMPL(lamina, CPU, library) {
  library.impl("norm", norm_op);
  library.impl("product", product_op);
  library.impl("gated", gated_op);
  library.impl("rotate", rotate_op);
  library.impl("attend", attend_op);
  library.impl("layer", layer_op);
  library.impl("draw", draw_op);
  library.impl("logits", logits_op);
}
