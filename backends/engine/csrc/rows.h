// What happens to a row between the products: normalising, rotating, and storing keys and values.
#pragma once
#include "quantise.h"
#include "store.h"

namespace lamina {

inline float root_scale(const float* from, int64_t width, float epsilon) {
  Floats squares = {};
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats value = load(from + i, width - i);
    squares += value * value;
  }
  return 1.0f / std::sqrt(sum(squares) / width + epsilon);
}

template <class T>
void normalise_row(const float* from, int64_t width, const float* weight, float epsilon, T* to) {
  const float scale = root_scale(from, width, epsilon);
  for (int64_t i = 0; i < width; i += kLanes)
    store(to + i, load(from + i, width - i) * scale * load(weight + i, width - i), width - i);
}

template <class T>
void normalise(const float* hidden, const int64_t* index, int64_t rows, int64_t width, const float* weight, float epsilon,
               T* out) {
  share_rows(rows, [&](int64_t row) {
    normalise_row(hidden + (index ? index[row] : row) * width, width, weight, epsilon, out + row * width);
  });
}

// The same in one go with quantising: `Rows` are Quantised or Grouped.
template <class Rows>
void normalise(const float* hidden, const int64_t* index, int64_t rows, int64_t width, const float* weight, float epsilon,
               const Rows& out) {
  share_rows(rows, [&](int64_t row) {
    thread_local std::vector<float> normed;
    normed.resize(width);
    normalise_row(hidden + (index ? index[row] : row) * width, width, weight, epsilon, normed.data());
    quantise_row(normed.data(), width, out, row);
  });
}

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
template <class T, class K>
void rotate_and_store(const float* heads, int64_t tokens, int64_t num_heads, const float* cosines, const float* sines,
                      const int64_t* positions, const int64_t* slots, const Store<K>& to, T* queries) {
  const int64_t half = to.dim / 2;
  share_rows(tokens, [&](int64_t token) {
    thread_local std::vector<float> rotated;
    rotated.resize(to.dim);
    const float* from = heads + token * (num_heads + 2 * to.kv_heads) * to.dim;
    const float *c = cosines + positions[token] * half, *s = sines + positions[token] * half;
    for (int64_t head = 0; head < num_heads; ++head, from += to.dim)
      rotate(from, c, s, half, queries + (token * num_heads + head) * to.dim);
    const float* values = from + to.kv_heads * to.dim;
    for (int64_t head = 0; head < to.kv_heads; ++head, from += to.dim, values += to.dim) {
      const int64_t row = to.row(slots[token] / to.slots, head, slots[token] % to.slots);
      rotate(from, c, s, half, rotated.data());
      put(rotated.data(), to.dim, to.keys + row * to.dim, to.key_scales + row);
      put(values, to.dim, to.values + row * to.dim, to.value_scales + row);
    }
  });
}

}  // namespace lamina
