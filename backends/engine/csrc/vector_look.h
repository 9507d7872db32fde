// A look over the slots of one part by the vector units: any type, any dimension, any processor.
#pragma once
#include <type_traits>

#include "look.h"

namespace lamina {

constexpr int64_t kAtOnce = 9;  // queries whose weights stay near

// D is the dimension where the compiler may know it, else 0.
template <int D, class T, class K>
inline Floats dot(const T* a, const K* b, int64_t dim) {
  const int64_t n = D ? D : dim;
  Floats acc = {};
  int64_t i = 0;
#ifdef __AVX512BF16__
  if constexpr (std::is_same_v<T, BFloat16> && std::is_same_v<K, BFloat16>)
    for (; i + 32 <= n; i += 32)
      acc = (Floats)_mm512_dpbf16_ps((__m512)acc, (__m512bh)load((const float*)(a + i)), (__m512bh)load((const float*)(b + i)));
#endif
  for (; i < n; i += kLanes) acc += load(a + i, n - i) * load(b + i, n - i);
  return acc;
}

// out[query] (dim) = sum over slots of weights[query][slot] * values[slot]; W vectors of N queries at a time.
template <int N, int W, class K>
inline void add_values(const float (*weights)[kPart], const K* const* values, int64_t count, int64_t from, int64_t dim, float* out) {
  Floats acc[N][W] = {};
  for (int64_t slot = 0; slot < count; ++slot)
    for (int i = 0; i < W; ++i) {
      const Floats value = load(values[slot] + from + i * kLanes, dim - from - i * kLanes);
      for (int n = 0; n < N; ++n) acc[n][i] += weights[n][slot] * value;
    }
  for (int n = 0; n < N; ++n)
    for (int i = 0; i < W; ++i) store(out + n * dim + from + i * kLanes, acc[n][i], dim - from - i * kLanes);
}

template <int N, int D, class K>
inline void add_values(const float (*weights)[kPart], const K* const* values, int64_t count, int64_t dim, float* out) {
  if constexpr (D == 64) return add_values<N, 4>(weights, values, count, 0, 64, out);
  int64_t from = 0;
  for (; from + 4 * kLanes <= dim; from += 4 * kLanes) add_values<N, 4>(weights, values, count, from, dim, out);
  for (; from < dim; from += kLanes) add_values<N, 1>(weights, values, count, from, dim, out);
}

// Turn a query's scores into weights where it may look, from `first` up to before `limit`, and into 0 elsewhere.
inline void weigh(float* row, int64_t first, int64_t limit, int64_t padded, const float* scales, float* best, float* total) {
  std::fill(row, row + first, -INFINITY);
  std::fill(row + limit, row + padded, -INFINITY);
  Floats top = broadcast(kLowest);
  for (int64_t slot = 0; slot < padded; slot += kLanes) top = load(row + slot) > top ? load(row + slot) : top;
  float most = kLowest;
  for (int64_t lane = 0; lane < kLanes; ++lane) most = std::max(most, top[lane]);
  Floats sums = {};
  for (int64_t slot = 0; slot < padded; slot += kLanes) {
    const Floats weight = exponential(load(row + slot) - most);
    store(row + slot, scales ? weight * load(scales + slot) : weight);
    sums += weight;
  }
  *best = most, *total = sum(sums);
}

template <int D, class T, class K>
void score(const T* const* queries, int64_t count, const Slots<K>& slots, int64_t dim, float scale, float (*scores)[kPart]) {
  for (int64_t slot = 0; slot < slots.padded; slot += kLanes) {
    for (int64_t i = 0; i < kLanes; ++i)
      for (int64_t at = 0; at < dim; at += 64 / sizeof(K)) {
        __builtin_prefetch(slots.values[slot + i] + at);
        if (slot + kLanes < slots.padded) __builtin_prefetch(slots.keys[slot + kLanes + i] + at);
      }
    const Floats by = slots.has_scales ? load(slots.key_scales + slot) * scale : broadcast(scale);
    for (int64_t query = 0; query < count; ++query) {
      Floats parts[kLanes];
      for (int64_t i = 0; i < kLanes; ++i) parts[i] = dot<D>(queries[query], slots.keys[slot + i], dim);
      store(scores[query] + slot, sums_of(parts) * by);
    }
  }
}

template <int D, class T, class K>
void look_by_vectors(const Look<T>& look, const Slots<K>& slots, int64_t dim, float scale, const Found& found) {
  alignas(64) float weights[kAtOnce][kPart];
  for (int64_t begin = 0; begin < look.count; begin += kAtOnce) {
    const int64_t many = std::min(kAtOnce, look.count - begin);
    score<D>(look.queries + begin, many, slots, dim, scale, weights);
    for (int64_t i = 0; i < many; ++i)
      weigh(weights[i], slots.within(look.firsts[begin + i]), slots.within(look.limits[begin + i]), slots.padded,
            slots.has_scales ? slots.value_scales : nullptr, found.best + begin + i, found.total + begin + i);
    int64_t i = 0;
    for (; i + 3 <= many; i += 3) add_values<3, D>(weights + i, slots.values, slots.count, dim, found.values + (begin + i) * dim);
    for (; i < many; ++i) add_values<1, D>(weights + i, slots.values, slots.count, dim, found.values + (begin + i) * dim);
  }
}

}  // namespace lamina
