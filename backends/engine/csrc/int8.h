// Rows of 8 bits times a matrix of 8 bits, summed in integers: exact, so a row's result is the same in any batch.
//
// A matrix comes packed in panels of 32 outputs, each [depth / 4][32][4] codes, 32 scales, and 32 sums of its codes times 128.
#pragma once
#include "amx.h"
#include "quantise.h"
#include "takers.h"

namespace lamina {

constexpr int64_t kFewRows = 8;    // rows that the vector units work on at once
constexpr int64_t kAhead8 = 2048;  // bytes to prefetch ahead: measured for 8 and 4 bits, flat from 1024 to 3584

struct Int8 {  // a packed matrix
  const int8_t* bytes;
  int64_t depth, panels;
  int64_t stride() const { return depth * kPanel + 2 * kPanel * sizeof(float); }
  const int8_t* codes(int64_t panel) const { return bytes + panel * stride(); }
  const float* scales(int64_t panel) const { return (const float*)(codes(panel) + depth * kPanel); }
  const int32_t* shifts(int64_t panel) const { return (const int32_t*)(scales(panel) + kPanel); }
};

inline Ints load(const int32_t* from) {
  Ints value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

// Row `output` of the matrix, as values.
inline void unpack_row(const Int8& w, int64_t output, int64_t width, float* to) {
  const int64_t panel = output / kPanel, lane = output % kPanel;
  const int8_t* codes = w.codes(panel) + 4 * lane;
  for (int64_t k = 0; k < width; ++k) to[k] = codes[k / 4 * 4 * kPanel + k % 4] * w.scales(panel)[lane];
}

inline uint32_t quad_at(const int8_t* codes) {
  uint32_t quad;
  std::memcpy(&quad, codes, sizeof quad);
  return quad;
}

// acc += the products of 16 quads of weights with one quad of a row; what `w` holds is below 128 for add_small.
#ifdef __AVX512VNNI__
constexpr bool kIsShifted = true;  // this unit takes one side unsigned, so the row's codes are raised by 128
inline Ints add_quads(Ints acc, uint32_t quad, Ints w) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)acc, _mm512_set1_epi32(quad ^ 0x80808080u), (__m512i)w);
}
inline Ints add_small(Ints acc, uint32_t quad, Ints w) {
  return (Ints)_mm512_dpbusd_epi32((__m512i)acc, (__m512i)w, _mm512_set1_epi32(quad));
}
#else
constexpr bool kIsShifted = false;
#ifdef __AVX2__
inline Ints add_quads(Ints acc, uint32_t quad, Ints w) {  // even and odd bytes as pairs of 16 bits
  typedef int16_t Shorts __attribute__((vector_size(64)));
  const Shorts x = (Shorts)(Words{} + quad), x_parts[2] = {(x << 8) >> 8, x >> 8};
  const Shorts w_parts[2] = {((Shorts)w << 8) >> 8, (Shorts)w >> 8};
  for (int part = 0; part < 2; ++part) {
    __m256i a[2], b[2];
    std::memcpy(a, &x_parts[part], sizeof a), std::memcpy(b, &w_parts[part], sizeof b);
    const __m256i sums[2] = {_mm256_madd_epi16(a[0], b[0]), _mm256_madd_epi16(a[1], b[1])};
    acc += load((const int32_t*)sums);
  }
  return acc;
}
#else
inline Ints add_quads(Ints acc, uint32_t quad, Ints w) {
  for (int byte = 24; byte >= 0; byte -= 8) acc += ((w << byte) >> 24) * ((int32_t)(quad << byte) >> 24);
  return acc;
}
#endif
inline Ints add_small(Ints acc, uint32_t quad, Ints w) { return add_quads(acc, quad, w); }
#endif

template <int M>
void tile(const Quantised& x, int64_t row, const Int8& w, int64_t panel, Ints (*sums)[2]) {
  const int8_t *codes = x.codes(row), *at = w.codes(panel), *end = at + w.depth * kPanel;
  Ints acc[M][2];
  for (int m = 0; m < M; ++m)
    for (int half = 0; half < 2; ++half) acc[m][half] = kIsShifted ? -load(w.shifts(panel) + half * kLanes) : Ints{};
  for (; at < end; at += 4 * kPanel, codes += 4) {
    const Ints first = load((const int32_t*)at), second = load((const int32_t*)at + kLanes);
    __builtin_prefetch(at + kAhead8), __builtin_prefetch(at + kAhead8 + 64);
    for (int m = 0; m < M; ++m) {
      const uint32_t quad = quad_at(codes + m * x.stride);
      acc[m][0] = add_quads(acc[m][0], quad, first);
      acc[m][1] = add_quads(acc[m][1], quad, second);
    }
  }
  std::memcpy(sums, acc, sizeof acc);
}

#ifdef __AMX_INT8__
template <bool IsTall>
void amx_exact(const Quantised& x, int64_t row, const Int8& w, int64_t panel, Ints (*sums)[2]) {
  const int8_t *codes = x.codes(row), *below = x.codes(row + 16), *at = w.codes(panel);
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (IsTall) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t k = 0; k < w.depth; k += 64, at += 64 * kPanel) {
    _tile_loadd(4, codes + k, x.stride);
    _tile_loadd(6, at, 128);
    _tile_loadd(7, at + 64, 128);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    if constexpr (IsTall) {
      _tile_loadd(5, below + k, x.stride);
      _tile_dpbssd(2, 5, 6);
      _tile_dpbssd(3, 5, 7);
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

template <class Take>
void take_exact(const Quantised& x, int64_t row, const Int8& w, int64_t panel, const Ints (*sums)[2], int64_t count, Take take) {
  const Floats scales[2] = {load(w.scales(panel)), load(w.scales(panel) + kLanes)};
  for (int64_t i = 0; i < count; ++i) {
    const Floats by = broadcast(x.scale(row + i));
    const Floats products[2] = {__builtin_convertvector(sums[i][0], Floats) * (scales[0] * by),
                                __builtin_convertvector(sums[i][1], Floats) * (scales[1] * by)};
    take(row + i, panel, products);
  }
}

template <class Take, int... M>
void vector_panel(const Quantised& x, int64_t rows, const Int8& w, int64_t panel, Take take, std::integer_sequence<int, M...>) {
  using Kernel = void (*)(const Quantised&, int64_t, const Int8&, int64_t, Ints(*)[2]);
  constexpr Kernel kernels[] = {tile<M + 1>...};
  for (int64_t row = 0; row < rows; row += kFewRows) {
    Ints sums[kFewRows][2];
    const int64_t count = std::min(kFewRows, rows - row);
    kernels[count - 1](x, row, w, panel, sums);
    take_exact(x, row, w, panel, sums, count, take);
  }
}

// Call `take(row, panel, sums)` for all rows and panels of x (rows, depth) times a packed matrix.
template <class Take>
void products(const Quantised& x, int64_t rows, const Int8& w, Take take) {
#ifdef __AMX_INT8__
  if (rows >= 5 && may_use_amx()) {  // measured: even at 4, a fifth faster at 12
    share(w.panels, [&](int64_t panel) {
      Tiles tiles;
      for (int64_t row = 0; row < rows; row += 32) {
        alignas(64) Ints sums[32][2];
        const int64_t count = std::min<int64_t>(32, rows - row);
        (count > 16 ? amx_exact<true> : amx_exact<false>)(x, row, w, panel, sums);
        take_exact(x, row, w, panel, sums, count, take);
      }
    });
    return;
  }
#endif
  share(w.panels, [&](int64_t panel) { vector_panel(x, rows, w, panel, take, std::make_integer_sequence<int, kFewRows>{}); });
}

}  // namespace lamina
