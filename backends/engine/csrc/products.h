// Rows times a packed matrix. A matrix (outputs, depth) comes packed in panels of 32 outputs: float as [panel][depth][32],
// bfloat16 as [panel][depth / 2][32][2]; so few rows stream it and many rows reuse a panel in cache. The products of
// bfloat16 use AVX512-BF16 and AMX where the compiler was told of them. `sums[row]` are a row's 32 outputs of one panel.
#pragma once
#include <utility>

#include "amx.h"
#include "takers.h"
#include "threads.h"

namespace lamina {

constexpr int64_t kRows = 8;      // rows that the vector units work on at once
constexpr int64_t kTall = 32;     // rows that AMX works on at once; buffers of rows are padded to it
constexpr int64_t kAhead = 2048;  // bytes to prefetch ahead, measured

template <class T>
struct Plain {  // a packed matrix
  const T* values;
  int64_t depth, panels;
  const T* panel(int64_t index) const { return values + index * depth * kPanel; }
};

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
void vector_products(const T* x, int64_t rows, const Plain<T>& w, Take take) {
  share(w.panels, [&](int64_t panel) {
    for (int64_t row = 0; row < rows; row += kRows) {
      Floats sums[kRows][2];
      const int64_t count = std::min(kRows, rows - row);
      tile(x + row * w.depth, count, w.depth, w.panel(panel), sums, std::make_integer_sequence<int, kRows>{});
      for (int64_t i = 0; i < count; ++i) take(row + i, panel, sums[i]);
    }
  });
}

template <class Take>
void products(const float* x, int64_t rows, const Plain<float>& w, Take take) {
  vector_products(x, rows, w, take);
}

template <class Take>
void products(const BFloat16* x, int64_t rows, const Plain<BFloat16>& w, Take take) {
#ifdef __AMX_BF16__
  if (rows >= 4 && w.depth % 32 == 0 && may_use_amx()) {  // of fewer rows AMX computes no more per byte of weights
    share(w.panels, [&](int64_t panel) {
      Tiles tiles;
      for (int64_t row = 0; row < rows; row += kTall) {
        alignas(64) Floats sums[kTall][2];
        const int64_t count = std::min(kTall, rows - row);
        (count > 16 ? amx_tile<true> : amx_tile<false>)(x + row * w.depth, w.depth, w.panel(panel), sums);
        for (int64_t i = 0; i < count; ++i) take(row + i, panel, sums[i]);
      }
    });
    return;
  }
#endif
  vector_products(x, rows, w, take);
}

}  // namespace lamina
