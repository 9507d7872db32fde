// Rows of 8 bits times a matrix of 4 bits, both in groups of 32 inputs: weight = code * scale + least, each group's own.
//
// Within a group sums are exact integers, and groups are added in order, so a row's result is the same in any batch. A
// matrix comes packed in panels of 32 outputs, each of one block per group: codes [4][32][4] (quad j in the low halves of
// the bytes, quad j + 4 in the high ones), then 32 scales and 32 least values in half precision.
#pragma once
#include "int8.h"

namespace lamina {

constexpr int64_t kBlock = kGroup * kPanel / 2 + 2 * kPanel * 2;  // bytes
constexpr int64_t kQuads = kGroup / 4;

struct Int4 {  // a packed matrix
  const uint8_t* bytes;
  int64_t depth, panels;
  int64_t groups() const { return depth / kGroup; }
  const uint8_t* block(int64_t panel, int64_t group) const { return bytes + (panel * groups() + group) * kBlock; }
};

inline Floats load_halves(const uint8_t* from) {
  Halves value;
  std::memcpy(&value, from, sizeof value);
#ifdef __AVX512F__
  return (Floats)_mm512_cvtph_ps((__m256i)value);
#else
  const Words wide = __builtin_convertvector(value, Words);  // finite ones: what is infinite would end up large
  return (Floats)((wide & 0x8000) << 16 | (Words)((Floats)((wide & 0x7fff) << 13) * 0x1p112f));
#endif
}

struct Group {  // one half of a panel's block: what its codes count for
  Floats scale, least;
  Group(const uint8_t* block, int64_t half)
      : scale(load_halves(block + kBlock - 4 * kPanel + 2 * kLanes * half)), least(load_halves(block + kBlock - 2 * kPanel + 2 * kLanes * half)) {}
  void add(Floats& acc, Ints dots, float by, float sum) const {
    acc += __builtin_convertvector(dots, Floats) * (scale * by);
    acc += least * sum;
  }
};

inline void unpack(const uint8_t* block, int64_t half, Ints (&quads)[kQuads]) {
  for (int64_t j = 0; j < kQuads / 2; ++j) {
    const Ints both = load((const int32_t*)(block + (2 * j + half) * 64));
    quads[j] = both & 0x0f0f0f0f;
    quads[j + kQuads / 2] = (both >> 4) & 0x0f0f0f0f;
  }
}

template <int M>
void tile(const Grouped& x, int64_t row, const Int4& w, int64_t panel, Floats (*sums)[2]) {
  Floats acc[M][2] = {};
  for (int64_t group = 0; group < w.groups(); ++group) {
    const uint8_t* block = w.block(panel, group);
    for (int64_t i = 0; i < kBlock; i += 64) __builtin_prefetch(block + kAhead8 + i);
    for (int64_t half = 0; half < 2; ++half) {
      const Group scales(block, half);
      Ints quads[kQuads];
      unpack(block, half, quads);
      for (int m = 0; m < M; ++m) {
        const int8_t* codes = x.codes(row + m) + group * kGroup;
        Ints dots = {};
        for (int64_t quad = 0; quad < kQuads; ++quad) dots = add_small(dots, quad_at(codes + 4 * quad), quads[quad]);
        scales.add(acc[m][half], dots, x.scales(row + m)[group], x.sums(row + m)[group]);
      }
    }
  }
  std::memcpy(sums, acc, sizeof acc);
}

#ifdef __AMX_INT8__
struct GroupTiles {  // tiles 0 and 1 take sums, 2 and 3 sixteen rows of a group, 4 and 5 its quads
  GroupTiles() {
    alignas(64) uint8_t config[64] = {1};
    for (int i = 0; i < 6; ++i) config[16 + 2 * i] = i < 2 || i > 3 ? 64 : kGroup, config[48 + i] = i < 4 ? 16 : kQuads;
    _tile_loadconfig(config);
  }
  ~GroupTiles() { _tile_release(); }
};

// The products of 16 rows with the quads of a pair of groups, each group's alone.
inline void amx_groups(const int8_t* codes, int64_t stride, const Ints* quads, Ints (*dots)[16]) {
  _tile_zero(0);
  _tile_zero(1);
  _tile_loadd(2, codes, stride);
  _tile_loadd(3, codes + kGroup, stride);
  _tile_loadd(4, quads, 64);
  _tile_loadd(5, quads + kQuads, 64);
  _tile_dpbsud(0, 2, 4);
  _tile_dpbsud(1, 3, 5);
  _tile_stored(0, dots[0], 64);
  _tile_stored(1, dots[1], 64);
}

// 16 rows, one half of a panel whose quads lie unpacked in `quads`.
inline void amx_half(const Grouped& x, int64_t row, const Int4& w, int64_t panel, int64_t half, const Ints* quads, Floats (*sums)[2]) {
  Floats acc[16] = {};
  alignas(64) Ints dots[2][16];
  const int64_t groups = w.groups(), step = x.stride / sizeof(float);
  for (int64_t group = 0; group < groups; group += 2) {  // depths are multiples of 64, so groups come in pairs
    amx_groups(x.codes(row) + group * kGroup, x.stride, quads + group * kQuads, dots);
    for (int64_t i = 0; i < 2; ++i) {
      const Group scales(w.block(panel, group + i), half);
      const float *by = x.scales(row) + group + i, *sums_of = x.sums(row) + group + i;
      for (int m = 0; m < 16; ++m, by += step, sums_of += step) scales.add(acc[m], dots[i][m], *by, *sums_of);
    }
  }
  for (int m = 0; m < 16; ++m) sums[m][half] = acc[m];
}

inline void amx_panel(const Grouped& x, int64_t rows, const Int4& w, int64_t panel, Floats (*sums)[2]) {
  thread_local std::vector<Ints> quads;
  quads.resize(w.depth / 4);
  GroupTiles tiles;
  for (int64_t half = 0; half < 2; ++half) {
    for (int64_t group = 0; group < w.groups(); ++group)
      unpack(w.block(panel, group), half, *(Ints(*)[kQuads])(quads.data() + group * kQuads));
    for (int64_t row = 0; row < rows; row += 16) amx_half(x, row, w, panel, half, quads.data(), sums + row);
  }
}
#endif

template <class Take, int... M>
void vector_panel(const Grouped& x, int64_t rows, const Int4& w, int64_t panel, Take take, std::integer_sequence<int, M...>) {
  using Kernel = void (*)(const Grouped&, int64_t, const Int4&, int64_t, Floats(*)[2]);
  constexpr Kernel kernels[] = {tile<M + 1>...};
  for (int64_t row = 0; row < rows; row += kFewRows) {
    Floats sums[kFewRows][2];
    const int64_t count = std::min(kFewRows, rows - row);
    kernels[count - 1](x, row, w, panel, sums);
    for (int64_t i = 0; i < count; ++i) take(row + i, panel, sums[i]);
  }
}

// Call `take(row, panel, sums)` for all rows and panels of x (rows, depth) times a packed matrix.
template <class Take>
void products(const Grouped& x, int64_t rows, const Int4& w, Take take) {
#ifdef __AMX_INT8__
  if (rows >= 32 && may_use_amx()) {  // measured: its sums by group cost more than they save up to 24, even at 32
    share(w.panels, [&](int64_t panel) {
      thread_local std::vector<Floats> space;
      space.resize(rounded_up(rows, 16) * 2);
      const auto sums = (Floats(*)[2])space.data();
      amx_panel(x, rows, w, panel, sums);
      for (int64_t row = 0; row < rows; ++row) take(row, panel, sums[row]);
    });
    return;
  }
#endif
  share(w.panels, [&](int64_t panel) { vector_panel(x, rows, w, panel, take, std::make_integer_sequence<int, kFewRows>{}); });
}

}  // namespace lamina
