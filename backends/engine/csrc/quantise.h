// Rows of activations in 8 bits: value = code * scale, one scale a row, so that no row depends on the others of its batch.
#pragma once
#include <vector>

#include "threads.h"
#include "vectors.h"

namespace lamina {

typedef int8_t Codes __attribute__((vector_size(16)));

constexpr int64_t kGroup = 32;  // inputs that share a scale where weights have 4 bits

inline int64_t rounded_up(int64_t count, int64_t to) { return (count + to - 1) / to * to; }

struct Quantised {  // rows of [codes, zeros up to `depth`][sums of the codes, a float per group][scale], `stride` bytes apart
  int8_t* rows = nullptr;
  int64_t depth = 0, stride = 0;
  Quantised() = default;
  Quantised(void* rows, int64_t width)
      : rows((int8_t*)rows), depth(rounded_up(width, 64)), stride(stride_of(width)) {}
  static int64_t stride_of(int64_t width) {
    const int64_t depth = rounded_up(width, 64);
    return rounded_up(depth + (depth / kGroup + 1) * sizeof(float), 64);
  }
  int8_t* codes(int64_t row) const { return rows + row * stride; }
  float* sums(int64_t row) const { return (float*)(codes(row) + depth); }
  float& scale(int64_t row) const { return sums(row)[depth / kGroup]; }
};

// Codes from -127 to 127, the largest value at the end of them; a row that is not made of numbers has no scale.
inline void quantise_row(const float* from, int64_t width, const Quantised& to, int64_t row) {
  Floats largest = {}, check = {};
  for (int64_t i = 0; i < width; i += kLanes) {
    const Floats value = load(from + i, width - i), size = value < 0 ? -value : value;
    check += value * 0.0f;
    largest = size > largest ? size : largest;
  }
  float most = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) most = std::max(most, largest[lane]);
  const float by = most > 0 ? 127.0f / most : 0.0f;
  int8_t* codes = to.codes(row);
  for (int64_t i = 0; i < to.depth; i += kGroup) {
    Floats sums = {};
    for (int64_t half = i; half < i + kGroup; half += kLanes) {
      const Floats code = half < width ? whole(load(from + half, width - half) * by) : Floats{};
      const Codes narrow = __builtin_convertvector(__builtin_convertvector(code, Ints), Codes);
      std::memcpy(codes + half, &narrow, sizeof narrow);
      sums += code;
    }
    to.sums(row)[i / kGroup] = sum(sums);
  }
  to.scale(row) = sum(check) == 0.0f ? most / 127.0f : NAN;
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
template <class T>
void quantise(const T* from, int64_t rows, int64_t width, Quantised to) {
  share_rows(rows, [&](int64_t row) { quantise_row(as_floats(from + row * width, width), width, to, row); });
}

}  // namespace lamina
