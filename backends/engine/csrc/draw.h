// Drawing a token: a pure function of one row of logits and its request's numbers.
#pragma once
#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "vectors.h"

namespace lamina {

struct Candidate {
  float weight;
  int32_t id;
  // The heaviest first, of equals the lowest id.
  bool operator<(const Candidate& other) const { return weight != other.weight ? weight > other.weight : id < other.id; }
};

// The first of the largest logits; -1 where one is not a number, or the largest is infinite.
int64_t most_likely(const float* logits, int64_t size) {
  Floats top = broadcast(-INFINITY), check = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    const Floats value = load(logits + i);
    check += value * 0.0f;  // not a number after any that is none, and after the infinite
    top = value > top ? value : top;
  }
  float most = -INFINITY, odd = sum(check);
  for (; i < size; ++i) most = std::max(most, logits[i]), odd += logits[i] * 0.0f;
  for (int64_t lane = 0; lane < kLanes; ++lane) most = std::max(most, top[lane]);
  if (std::isinf(most) || (odd != 0.0f && std::any_of(logits, logits + size, [](float x) { return std::isnan(x); }))) return -1;
  return std::find(logits, logits + size, most) - logits;
}

double mass_of(const float* weights, int64_t size) {
  double sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (int64_t lane = 0; lane < kLanes; ++lane) sums[lane] += weights[i + lane];
  for (; i < size; ++i) sums[0] += weights[i];
  return std::accumulate(sums, sums + kLanes, 0.0);
}

// Put the candidates that top_k and then top_p leave into `kept`, the heaviest first. `weights` reach up to 1.
void restrict(const float* weights, int64_t size, int64_t top_k, double top_p, std::vector<Candidate>& kept) {
  const size_t most = top_k ? std::min(top_k, size) : size;
  double total = top_p < 1 ? mass_of(weights, size) : INFINITY;
  for (float bar : {0x1p-6f, 0x1p-10f, 0x1p-14f, 0x1p-20f, 0.0f}) {  // only those above a bar are sorted: mostly a few
    kept.clear();
    double mass = 0;
    for (int64_t i = 0; i < size; i += kLanes) {
      const int64_t end = std::min(i + kLanes, size);
      float top = 0;
      for (int64_t at = i; at < end; ++at) top = weights[at] > top ? weights[at] : top;
      if (top < bar) continue;
      for (int64_t at = i; at < end; ++at)
        if (weights[at] >= bar) kept.push_back({weights[at], (int32_t)at}), mass += weights[at];
    }
    if (kept.size() >= most || (most == (size_t)size && mass > top_p * total)) break;  // top_p is of what top_k leaves
  }
  std::sort(kept.begin(), kept.end());
  if (kept.size() > most) kept.resize(most);
  if (top_p >= 1) return;
  if (most < (size_t)size)
    total = std::accumulate(kept.begin(), kept.end(), 0.0, [](double sum, Candidate each) { return sum + each.weight; });
  double running = 0;
  size_t needed = 0;
  while (needed < kept.size() && (running += kept[needed++].weight) < top_p * total) continue;
  kept.resize(needed);
}

// The first id whose running sum of weights, by id, exceeds `level` times all of them.
int64_t draw(const float* logits, int64_t size, float temperature, int64_t top_k, double top_p, double level,
             std::vector<float>& weights, std::vector<Candidate>& kept) {
  const int64_t best = most_likely(logits, size);
  if (best < 0 || temperature <= 0) return best;
  weights.resize(size);
  const float most = logits[best], divisor = std::max(temperature, 1e-6f);
  for (int64_t i = 0; i < size; i += kLanes)
    store(weights.data() + i, exponential((load(logits + i, size - i) - most) / divisor), size - i);
  double total = 0, running = 0;
  int64_t last = best;
  if (top_k || top_p < 1) {
    restrict(weights.data(), size, top_k, top_p, kept);
    std::sort(kept.begin(), kept.end(), [](Candidate a, Candidate b) { return a.id < b.id; });
    for (const Candidate& each : kept) total += each.weight;
    for (const Candidate& each : kept) {
      if ((running += each.weight) > level * total) return each.id;
      if (each.weight > 0) last = each.id;
    }
    return last;
  }
  constexpr int64_t kStretch = 1024;  // first find the stretch, then the id in it
  for (int64_t i = 0; i < size; i += kStretch) total += mass_of(weights.data() + i, std::min(kStretch, size - i));
  for (int64_t i = 0; i < size; i += kStretch) {
    const double mass = mass_of(weights.data() + i, std::min(kStretch, size - i));
    if (running + mass <= level * total) {
      running += mass;
      continue;
    }
    for (int64_t at = i; at < std::min(i + kStretch, size); ++at) {
      if (weights[at] > 0) last = at;
      if ((running += weights[at]) > level * total) return at;
    }
  }
  return last;
}

}  // namespace lamina
