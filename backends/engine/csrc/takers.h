// Where the sums of a product go: `sums` are a row's 32 outputs of one panel.
#pragma once
#include "vectors.h"

namespace lamina {

constexpr int64_t kPanel = 32;  // outputs in a panel: two vectors

struct Put {  // out (rows, width) = product
  float* out;
  int64_t width;
  void operator()(int64_t row, int64_t panel, const Floats* sums) const {
    for (int64_t half = 0, at = panel * kPanel; half < 2 && at < width; ++half, at += kLanes)
      store(out + row * width + at, sums[half], width - at);
  }
};

struct Add {  // out (rows, width) += product
  float* out;
  int64_t width;
  void operator()(int64_t row, int64_t panel, const Floats* sums) const {
    for (int64_t half = 0, at = panel * kPanel; half < 2 && at < width; ++half, at += kLanes) {
      float* to = out + row * width + at;
      store(to, load(to, width - at) + sums[half], width - at);
    }
  }
};

template <class T>
struct Gate {  // out (rows, width) = silu(gate) * up; a panel holds 16 gates and their 16 ups
  T* out;
  int64_t width;
  void operator()(int64_t row, int64_t panel, const Floats* sums) const {
    const Floats gated = sums[0] / (1.0f + exponential(-sums[0])) * sums[1];
    store(out + row * width + panel * kLanes, gated, width - panel * kLanes);
  }
};

}  // namespace lamina
