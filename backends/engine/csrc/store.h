// Where keys and values are kept: one layer's pages, what is written to them, and the slots that a look goes over.
#pragma once
#include <algorithm>

#include "vectors.h"

namespace lamina {

constexpr int64_t kPart = 256;  // positions that are looked at in one go; parts begin at its multiples, whoever looks

template <class K>
struct Store {  // one layer's keys and values, each (pages, kv_heads, slots, dim); int8 has a scale (pages, kv_heads, slots) each
  K *keys, *values;
  float *key_scales, *value_scales;
  int64_t kv_heads, slots, dim;
  int64_t row(int64_t page, int64_t head, int64_t slot) const { return (page * kv_heads + head) * slots + slot; }
};

template <class K>
inline void put(const float* from, int64_t dim, K* to, float*) {
  for (int64_t i = 0; i < dim; i += kLanes) store(to + i, load(from + i, dim - i), dim - i);
}

// As integers from -127 to 127 times one scale: the largest magnitude becomes 127.
inline void put(const float* from, int64_t dim, int8_t* to, float* scale) {
  Floats top = {};
  for (int64_t i = 0; i < dim; i += kLanes) {
    const Floats value = load(from + i, dim - i), magnitude = value < 0.0f ? -value : value;
    top = magnitude > top ? magnitude : top;
  }
  float largest = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) largest = std::max(largest, top[lane]);
  const float by = largest > 1e-30f ? 127.0f / largest : 0.0f;
  *scale = largest / 127.0f;
  for (int64_t i = 0; i < dim; i += kLanes) store(to + i, whole(load(from + i, dim - i) * by), dim - i);
}

// The slots from position `begin` up to `end`, at most kPart; spare ones up to a multiple of 32 repeat the last.
template <class K>
struct Slots {
  const K *keys[kPart], *values[kPart];
  float key_scales[kPart], value_scales[kPart];
  int64_t begin, count, padded;
  bool has_scales;
  Slots(const Store<K>& kv, int64_t head, const int32_t* pages, int64_t begin, int64_t end)
      : begin(begin), count(end - begin), padded((count + 31) / 32 * 32), has_scales(kv.key_scales != nullptr) {
    int64_t page = begin / kv.slots, slot = begin % kv.slots, row = 0;
    for (int64_t i = 0; i < padded; ++i) {
      if (i < count) {
        row = kv.row(pages[page], head, slot);
        if (++slot == kv.slots) slot = 0, ++page;
      }
      keys[i] = kv.keys + row * kv.dim, values[i] = kv.values + row * kv.dim;
      if (has_scales) key_scales[i] = kv.key_scales[row], value_scales[i] = kv.value_scales[row];
    }
  }
  int64_t within(int64_t position) const { return std::clamp<int64_t>(position - begin, 0, count); }
};

}  // namespace lamina
