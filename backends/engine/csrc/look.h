// A look: queries of one kv head that go over the same slots, and what they find there.
#pragma once
#include "store.h"

namespace lamina {

constexpr int64_t kQueries = 64;     // at most so many in a look
constexpr float kLowest = -1e30f;    // below any score, and still finite: what nobody has looked at weighs nothing

template <class T>
struct Look {  // query i sees the positions from firsts[i] up to before limits[i]
  const T* queries[kQueries];
  T* outs[kQueries];
  int64_t firsts[kQueries], limits[kQueries], count = 0, head = 0;
  const int32_t* pages;
  int64_t first() const { return *std::min_element(firsts, firsts + count); }
  int64_t last() const { return *std::max_element(limits, limits + count); }
};

// Per query: the largest score, the sum of the weights exp(score - largest), and the values (dim) by these weights.
struct Found {
  float *best, *total, *values;

  static int64_t rows(int64_t count) { return (count + 15) / 16 * 16; }
  static int64_t size(int64_t count, int64_t dim) { return rows(count) * (dim + 2); }
  Found(float* at, int64_t count) : best(at), total(at + rows(count)), values(at + 2 * rows(count)) {}

  // Add what was found in later positions.
  void merge(const Found& later, int64_t count, int64_t dim) {
    for (int64_t query = 0; query < count; ++query) {
      if (later.total[query] == 0) continue;
      const float most = std::max(best[query], later.best[query]);
      const float old = std::exp(best[query] - most), with = std::exp(later.best[query] - most);
      best[query] = most, total[query] = total[query] * old + later.total[query] * with;
      float* to = values + query * dim;
      for (int64_t i = 0; i < dim; i += kLanes)
        store(to + i, load(to + i, dim - i) * old + load(later.values + query * dim + i, dim - i) * with, dim - i);
    }
  }

  template <class T>
  void finish(const Look<T>& look, int64_t dim) const {
    for (int64_t query = 0; query < look.count; ++query)
      for (int64_t i = 0; i < dim; i += kLanes)
        store(look.outs[query] + i, load(values + query * dim + i, dim - i) / total[query], dim - i);
  }
};

}  // namespace lamina
