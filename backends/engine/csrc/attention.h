// Paged attention: up to 16 queries of one kv head look at the same pages, each up to its own limit.
#pragma once
#include <algorithm>

#include "rows.h"

namespace lamina {

constexpr int64_t kQueries = 16;  // queries that share each look at keys and values
constexpr int64_t kChunk = 64;    // keys between two looks at the maximum

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

}  // namespace lamina
