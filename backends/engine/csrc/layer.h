// One decoder layer, whatever its matrices are packed as: what stands between a product and the next depends on that.
#pragma once
#include "attention.h"
#include "int4.h"
#include "products.h"

namespace lamina {

template <class T, class W>
struct Between {  // 8-bit rows meet quantised matrices; what is made of sums before they are quantised stays exact
  using Rows = Quantised;
  using Inner = float;
};

template <class T>
struct Between<T, Int4> {
  using Rows = Grouped;
  using Inner = float;
};

template <class T>
struct Between<T, Plain<T>> {
  using Rows = T*;
  using Inner = T;
};

template <class T>
T* as_rows(T* from, int64_t, int64_t, T*) {
  return from;
}

template <class T, class Rows>
Rows as_rows(const T* from, int64_t rows, int64_t width, const Rows& space) {
  quantise(from, rows, width, space);
  return space;
}

template <class W>
struct Matrices {
  const float *attention_norm, *mlp_norm;
  W qkv, output, gate_up, down;
};

struct Sizes {
  int64_t tokens, width, looking, heads_width, num_heads, inner;  // `looking` is the width of all queries of a token
  float epsilon;
};

struct Place {  // where a step's tokens stand
  const float *cosines, *sines;
  const int64_t *positions, *slots;
};

template <class T, class W>
struct Space {  // for what stands between two products; rows are padded to kTall
  typename Between<T, W>::Rows rows, inner_rows;
  typename Between<T, W>::Inner* gated;
  float* heads;
  T *queries, *found;
};

// Changes residual (tokens, width), and the store.
template <class T, class W, class K>
void layer(float* residual, const Matrices<W>& by, const Sizes& size, const Place& at, const Plan& plan, const Store<K>& kv,
           const Space<T, W>& space) {
  using Inner = typename Between<T, W>::Inner;
  const int64_t tokens = size.tokens;
  normalise(residual, nullptr, tokens, size.width, by.attention_norm, size.epsilon, space.rows);
  products(space.rows, tokens, by.qkv, Put{space.heads, size.heads_width});
  rotate_and_store(space.heads, tokens, size.num_heads, at.cosines, at.sines, at.positions, at.slots, kv, space.queries);
  attend(space.queries, size.num_heads, kv, plan, space.found);
  products(as_rows(space.found, tokens, size.looking, space.rows), tokens, by.output, Add{residual, size.width});
  normalise(residual, nullptr, tokens, size.width, by.mlp_norm, size.epsilon, space.rows);
  products(space.rows, tokens, by.gate_up, Gate<Inner>{space.gated, size.inner});
  products(as_rows(space.gated, tokens, size.inner, space.inner_rows), tokens, by.down, Add{residual, size.width});
}

}  // namespace lamina
