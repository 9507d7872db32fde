// Vectors of 16 floats in GCC's own notation, so that one text compiles for any CPU: how they are read, written and summed.
#pragma once
#include <ATen/ATen.h>
#ifdef __x86_64__
#include <immintrin.h>
#endif

#include <cmath>
#include <cstdint>
#include <cstring>

namespace lamina {

using BFloat16 = c10::BFloat16;
typedef float Floats __attribute__((vector_size(64)));
typedef int32_t Ints __attribute__((vector_size(64)));
typedef uint32_t Words __attribute__((vector_size(64)));
typedef uint16_t Halves __attribute__((vector_size(32)));
typedef uint16_t Halves32 __attribute__((vector_size(64)));
typedef int8_t Bytes __attribute__((vector_size(16)));

constexpr int64_t kLanes = 16;

inline Floats broadcast(float value) { return value - Floats{}; }

inline Floats load(const float* from) {
  Floats value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

inline Floats load(const BFloat16* from) {
  Halves value;
  std::memcpy(&value, from, sizeof value);
  return (Floats)(__builtin_convertvector(value, Words) << 16);
}

inline Floats load(const int8_t* from) {
#ifdef __AVX512F__
  return (Floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
#else
  Bytes value;
  std::memcpy(&value, from, sizeof value);
  return __builtin_convertvector(value, Floats);
#endif
}

inline void store(float* to, Floats value) { std::memcpy(to, &value, sizeof value); }

inline void store(BFloat16* to, Floats value) {
#ifdef __AVX512BF16__
  const auto half = _mm512_cvtneps_pbh((__m512)value);
#else
  const Words bits = (Words)value, even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  const auto half = __builtin_convertvector(value == value ? even : Words{} + 0x7fc0, Halves);
#endif
  std::memcpy(to, &half, sizeof half);
}

inline void store(int8_t* to, Floats value) {
  const Bytes bytes = __builtin_convertvector(__builtin_convertvector(value, Ints), Bytes);
  std::memcpy(to, &bytes, sizeof bytes);
}

// The last vector of a run that is no multiple of 16: zeros stand for what is not there.
template <class T>
inline Floats load(const T* from, int64_t count) {
  if (count >= kLanes) return load(from);
  T padded[kLanes] = {};
  std::copy_n(from, count, padded);
  return load(padded);
}

template <class T>
inline void store(T* to, Floats value, int64_t count) {
  if (count >= kLanes) return store(to, value);
  T padded[kLanes];
  store(padded, value);
  std::copy_n(padded, count, to);
}

inline float sum(Floats value) {
  float total = 0;
  for (int64_t lane = 0; lane < kLanes; ++lane) total += value[lane];
  return total;
}

// The nearest whole numbers, of two the even ones; unlike adding and taking off 2^23, no multiplication melts into it.
inline Floats whole(Floats x) {
#ifdef __AVX512F__
  return (Floats)_mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
  for (int64_t lane = 0; lane < kLanes; ++lane) x[lane] = std::nearbyint(x[lane]);
  return x;
#endif
}

// exp to about one unit in the last place; 0 below -87, where floats end.
inline Floats exponential(Floats x) {
  const Floats low = broadcast(-87.0f), high = broadcast(88.0f);
  const auto is_zero = x < low;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const Floats round = broadcast(12582912.0f);
  const Floats whole = (x * 1.44269504f + round) - round;
  const Floats rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
  Floats poly = broadcast(1.9875691500e-4f);
  for (float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    poly = poly * rest + factor;
  poly = poly * rest * rest + rest + 1.0f;
  const Words scale = (Words)(__builtin_convertvector(whole, Ints) + 127) << 23;
  return is_zero ? Floats{} : poly * (Floats)scale;
}

// Which lanes of two vectors stay beside one another when blocks of 8, 4, 2 or 1 change places.
constexpr Ints kBlocks8 = {0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23};
constexpr Ints kBlocks4 = {0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27};
constexpr Ints kBlocks2 = {0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29};
constexpr Ints kBlocks1 = {0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30};

// Sums of 16 vectors as the lanes of one: four rounds that each halve the vectors.
inline Floats sums_of(Floats (&v)[16]) {
  const auto fold = [](Floats a, Floats b, Ints lanes, int size) {
    return __builtin_shuffle(a, b, lanes) + __builtin_shuffle(a, b, lanes + size);
  };
  for (int i = 0; i < 8; ++i) v[i] = fold(v[i], v[i + 8], kBlocks8, 8);
  for (int i = 0; i < 4; ++i) v[i] = fold(v[i], v[i + 4], kBlocks4, 4);
  for (int i = 0; i < 2; ++i) v[i] = fold(v[i], v[i + 2], kBlocks2, 2);
  return fold(v[0], v[1], kBlocks1, 1);
}

// Let row i of 16 become lane i of each: blocks of 8, 4, 2 and 1 change places across the diagonal.
inline void transpose(Words (&v)[16]) {
  const auto swap = [&](int step, Ints lanes) {
    for (int i = 0; i < 16; ++i)
      if (!(i & step)) {
        const Words a = v[i], b = v[i + step];
        v[i] = __builtin_shuffle(a, b, (Words)lanes), v[i + step] = __builtin_shuffle(a, b, (Words)(lanes + step));
      }
  };
  swap(8, kBlocks8), swap(4, kBlocks4), swap(2, kBlocks2), swap(1, kBlocks1);
}

#ifdef __AVX512BF16__
// Each lane's two numbers as a pair of bfloat16, the first one low.
inline Words pairs_of(Floats low, Floats high) {
  const __m512i halves = (__m512i)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
  constexpr Halves32 side_by_side = {0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
  return (Words)_mm512_permutexvar_epi16((__m512i)side_by_side, halves);
}
#endif

}  // namespace lamina
