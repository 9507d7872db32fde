// Rows of activations in 8 bits: value = code * scale. A scale is a row's, or that of a group in it where the weights have
// scales by group, too; no row depends on the others of its batch.
#pragma once
#include <algorithm>
#include <vector>

#include "threads.h"
#include "vectors.h"

namespace lamina {

typedef int8_t Codes __attribute__((vector_size(16)));

constexpr int64_t kGroup = 32;  // inputs that share a scale where weights have 4 bits

inline int64_t rounded_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

struct Quantised {  // rows of [codes, zeros up to `depth`][scale], `stride` bytes apart
  int8_t* rows = nullptr;
  int64_t depth = 0, stride = 0;
  Quantised() = default;
  Quantised(void* rows, int64_t width)
      : rows((int8_t*)rows), depth(rounded_up(width, 64)), stride(stride_of(width)) {}
  static int64_t stride_of(int64_t width) {
    return rounded_up(width, 64) + 64;
  }
  int8_t* codes(int64_t row) const { return rows + row * stride; }
  float& scale(int64_t row) const { return *(float*)(codes(row) + depth); }
};

struct Grouped {  // rows of [codes, zeros up to `depth`][scales of the groups][sums of the groups' values]
  int8_t* rows = nullptr;
  int64_t depth = 0, stride = 0;
  Grouped() = default;
  Grouped(void* rows, int64_t width) : rows((int8_t*)rows), depth(rounded_up(width, 64)), stride(stride_of(width)) {}
  static int64_t stride_of(int64_t width) {
    const int64_t depth = rounded_up(width, 64);
    return rounded_up(depth + 2 * depth / kGroup * sizeof(float), 64);
  }
  int8_t* codes(int64_t row) const { return rows + row * stride; }
  float* scales(int64_t row) const { return (float*)(codes(row) + depth); }
  float* sums(int64_t row) const { return scales(row) + depth / kGroup; }
};

inline float largest_of(const float* from, int64_t count) {  // not a number where one is none, or is infinite
  Floats largest = {}, check = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats value = load(from + i, count - i), size = value < 0 ? -value : value;
    check += value * 0.0f;
    largest = size > largest ? size : largest;
  }
  float most = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) most = std::max(most, largest[lane]);
  return sum(check) == 0.0f ? most : NAN;
}

// `count` codes, the last of them zeros where fewer values are there; returns their sum.
inline float encode(const float* from, int64_t there, float by, int64_t count, int8_t* to) {
  Floats sums = {};
  for (int64_t i = 0; i < count; i += kLanes) {
    const Floats code = i < there ? whole(load(from + i, there - i) * by) : Floats{};
    const Codes narrow = __builtin_convertvector(__builtin_convertvector(code, Ints), Codes);
    std::memcpy(to + i, &narrow, sizeof narrow);
    sums += code;
  }
  return sum(sums);
}

// Codes from -127 to 127, the largest value at the end of them; what is not made of numbers has a scale that is none.
inline void quantise_row(const float* from, int64_t width, const Quantised& to, int64_t row) {
  const float most = largest_of(from, width);
  encode(from, width, most > 0 ? 127.0f / most : 0.0f, to.depth, to.codes(row));
  to.scale(row) = most / 127.0f;
}

inline void quantise_row(const float* from, int64_t width, const Grouped& to, int64_t row) {
  for (int64_t i = 0; i < to.depth; i += kGroup) {
    const int64_t there = std::clamp<int64_t>(width - i, 0, kGroup);
    const float most = there ? largest_of(from + i, there) : 0.0f, scale = most / 127.0f;
    to.sums(row)[i / kGroup] = encode(from + i, there, most > 0 ? 127.0f / most : 0.0f, kGroup, to.codes(row) + i) * scale;
    to.scales(row)[i / kGroup] = scale;
  }
}

inline const float* as_floats(const float* from, int64_t) { return from; }

template <class T>
const float* as_floats(const T* from, int64_t width) {
  thread_local std::vector<float> row;
  row.resize(rounded_up(width, kLanes));
  for (int64_t i = 0; i < width; i += kLanes) store(row.data() + i, load(from + i, width - i));
  return row.data();
}

// from (rows, width), of any type.
template <class T, class Rows>
void quantise(const T* from, int64_t rows, int64_t width, const Rows& to) {
  share_rows(rows, [&](int64_t row) { quantise_row(as_floats(from + row * width, width), width, to, row); });
}

}  // namespace lamina
