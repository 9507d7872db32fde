// A look over the slots of one part by the matrix unit: scores are keys times queries, so each lane of a vector is a query
// and each row a slot; what is found is weights times values. A query's column depends on no other one.
#pragma once
#include "amx.h"
#include "look.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
namespace lamina {

constexpr int64_t kFewQueries = 8;  // up to so many are faster by the vector units, measured: here 16 cost what one does

struct AmxScratch {  // of one thread; 16 queries at a time
  alignas(64) float scores[kPart * kLanes];       // (slot, query)
  alignas(64) BFloat16 weights[kLanes * kPart];   // (query, slot)
  std::vector<uint32_t> queries, values;          // pairs of bfloat16: (dim / 2, query) and (slot / 2, dim)
  std::vector<BFloat16> keys;                     // (slot, dim), of slots that do not lie 16 in a row
  const BFloat16* tiles[kPart / 16];              // where the keys of 16 slots lie in a row
};

struct Lanes {  // the first and the limit of 16 queries within a part; spare ones do as the first does
  Ints firsts, limits;
  int64_t all_from = 0, all_to = kPart, any_from = kPart, any_to = 0;
  Lanes(const Look<BFloat16>& look, int64_t begin, const Slots<BFloat16>& slots) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      const int64_t query = begin + lane < look.count ? begin + lane : begin;
      const int64_t first = slots.within(look.firsts[query]), limit = slots.within(look.limits[query]);
      firsts[lane] = first, limits[lane] = limit;
      all_from = std::max(all_from, first), all_to = std::min(all_to, limit);
      any_from = std::min(any_from, first), any_to = std::max(any_to, limit);
    }
    any_from = any_from / 32 * 32, any_to = (any_to + 31) / 32 * 32;
  }
};

inline void pack_queries(const Look<BFloat16>& look, int64_t begin, int64_t dim, uint32_t* out) {
  for (int64_t lane = 0; lane < kLanes; ++lane)
    for (int64_t i = 0; i < dim / 2; ++i) {
      uint32_t pair = 0;
      if (begin + lane < look.count) std::memcpy(&pair, look.queries[begin + lane] + 2 * i, sizeof pair);
      out[i * kLanes + lane] = pair;
    }
}

// Where the keys of 16 slots lie in a row: in the store, or else in the copy that is made.
inline const BFloat16* keys_in_a_row(const Slots<BFloat16>& slots, int64_t slot, int64_t dim, BFloat16* copy) {
  bool is_in_a_row = true;
  for (int64_t i = 1; i < 16; ++i) is_in_a_row &= slots.keys[slot + i] == slots.keys[slot] + i * dim;
  if (is_in_a_row) return slots.keys[slot];
  for (int64_t i = 0; i < 16; ++i) std::copy_n(slots.keys[slot + i], dim, copy + i * dim);
  return copy;
}

inline void pair_values(const Slots<BFloat16>& slots, int64_t dim, uint32_t* out) {
  for (int64_t slot = 0; slot < slots.padded; slot += 2, out += dim)
    for (int64_t i = 0; i < dim; i += kLanes) {
      const Words pairs = (Words)load(slots.values[slot] + i) >> 16 | (Words)load(slots.values[slot + 1] + i);
      std::memcpy(out + i, &pairs, sizeof pairs);
    }
}

inline void score_tiles(const BFloat16* const* keys, const uint32_t* queries, int64_t dim, int64_t begin, int64_t end, float* scores) {
  for (int64_t slot = begin; slot < end; slot += 32) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t i = 0; i < dim; i += 32) {
      _tile_loadd(2, queries + i / 2 * kLanes, 64);
      _tile_loadd(3, keys[slot / 16] + i, dim * 2);
      _tile_loadd(4, keys[slot / 16 + 1] + i, dim * 2);
      _tile_dpbf16ps(0, 3, 2);
      _tile_dpbf16ps(1, 4, 2);
    }
    _tile_stored(0, scores + slot * kLanes, 64);
    _tile_stored(1, scores + (slot + 16) * kLanes, 64);
  }
}

// Turn the scores of the slots from `begin` to `end` into weights, slots side by side; and note the largest and the sum.
inline void weigh_lanes(const Lanes& lanes, float scale, AmxScratch& scratch, float* best, float* total) {
  const Floats nothing = broadcast(-INFINITY);
  Floats top = broadcast(kLowest), sums = {};
  for (int64_t slot = lanes.any_from; slot < lanes.any_to; ++slot) {
    Floats score = load(scratch.scores + slot * kLanes) * scale;
    if (slot < lanes.all_from || slot >= lanes.all_to)
      score = (lanes.firsts <= (int32_t)slot) & (lanes.limits > (int32_t)slot) ? score : nothing;
    store(scratch.scores + slot * kLanes, score);
    top = score > top ? score : top;
  }
  for (int64_t begin = lanes.any_from; begin < lanes.any_to; begin += 32) {
    Words pairs[kLanes];
    for (int64_t i = 0; i < kLanes; ++i) {
      Floats weights[2];
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t slot = begin + 2 * i + half;
        weights[half] = exponential(load(scratch.scores + slot * kLanes) - top);
        sums += weights[half];
      }
      pairs[i] = pairs_of(weights[0], weights[1]);
    }
    transpose(pairs);
    for (int64_t lane = 0; lane < kLanes; ++lane) std::memcpy(scratch.weights + lane * kPart + begin, &pairs[lane], 64);
  }
  store(best, top);
  store(total, sums);
}

inline void add_tiles(const BFloat16* weights, const uint32_t* values, int64_t dim, int64_t begin, int64_t end, float* out) {
  for (int64_t i = 0; i < dim; i += 32) {
    _tile_zero(0);
    _tile_zero(1);
    for (int64_t slot = begin; slot < end; slot += 32) {
      const uint32_t* pairs = values + slot / 2 * dim + i;
      _tile_loadd(2, weights + slot, kPart * 2);
      _tile_loadd(3, pairs, dim * 4);
      _tile_loadd(4, pairs + kLanes, dim * 4);
      _tile_dpbf16ps(0, 2, 3);
      _tile_dpbf16ps(1, 2, 4);
    }
    _tile_stored(0, out + i, dim * 4);
    _tile_stored(1, out + i + kLanes, dim * 4);
  }
}

inline void look_by_amx(const Look<BFloat16>& look, const Slots<BFloat16>& slots, int64_t dim, float scale, const Found& found) {
  thread_local AmxScratch scratch;
  scratch.queries.resize(dim / 2 * kLanes), scratch.values.resize(kPart / 2 * dim), scratch.keys.resize(kPart * dim);
  const Tiles tiles;
  for (int64_t slot = 0; slot < slots.padded; slot += 16)
    scratch.tiles[slot / 16] = keys_in_a_row(slots, slot, dim, scratch.keys.data() + slot * dim);
  pair_values(slots, dim, scratch.values.data());
  for (int64_t begin = 0; begin < look.count; begin += kLanes) {
    const Lanes lanes(look, begin, slots);
    pack_queries(look, begin, dim, scratch.queries.data());
    score_tiles(scratch.tiles, scratch.queries.data(), dim, lanes.any_from, lanes.any_to, scratch.scores);
    weigh_lanes(lanes, scale, scratch, found.best + begin, found.total + begin);
    add_tiles(scratch.weights, scratch.values.data(), dim, lanes.any_from, lanes.any_to, found.values + begin * dim);
  }
}

}  // namespace lamina
#endif
