// The engine's CPU kernels: one decoder layer over the flat tokens of a step, the logits, and each of their parts alone.
//
// One translation unit: the headers beside this file hold the parts (threads, vectors, products, rows, attention, draw),
// here are their borders to torch. Loops are shared out among the threads that are free, see threads.h.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "attention.h"
#include "draw.h"
#include "products.h"
#include "rows.h"

namespace lamina {

using at::Tensor;

template <class Run>
void by_type(const Tensor& like, Run run) {
  if (like.scalar_type() == at::kFloat) return run((float*)nullptr);
  TORCH_CHECK(like.scalar_type() == at::kBFloat16, "float32 or bfloat16, not ", like.scalar_type());
  run((BFloat16*)nullptr);
}

template <class T>
T* data(const Tensor& tensor) {
  TORCH_CHECK(tensor.is_contiguous(), "a tensor that is not contiguous");
  return tensor.data_ptr<T>();
}

template <class T>
Store<T> store_of(const Tensor& keys, const Tensor& values) {
  return {data<T>(keys), data<T>(values), keys.size(1), keys.size(2), keys.size(3)};
}

int64_t padded(int64_t rows) { return (rows + kTall - 1) / kTall * kTall; }

Tensor rows_like(const Tensor& like, int64_t rows, int64_t width) {
  return at::empty({padded(rows), width}, like.options()).narrow(0, 0, rows);
}

Tensor norm_op(const Tensor& hidden, const Tensor& weight, double epsilon, const Tensor& like) {
  const int64_t rows = hidden.size(0), width = hidden.size(1);
  Tensor result = rows_like(like, rows, width);
  by_type(like, [&]<class T>(T*) {
    const float *from = data<float>(hidden), *by = data<float>(weight);
    T* out = data<T>(result);
    normalise(from, nullptr, rows, width, by, epsilon, out);
  });
  return result;
}

// x (rows, depth) times a packed matrix, as float32 (rows, width).
Tensor product_op(const Tensor& x, const Tensor& packed, int64_t width) {
  const int64_t rows = x.size(0), depth = x.size(1), panels = packed.size(0);
  Tensor result = at::empty({rows, width}, x.options().dtype(at::kFloat)), tall = rows_like(x, rows, depth).copy_(x);
  by_type(x, [&]<class T>(T*) {
    const T *from = data<T>(tall), *w = data<T>(packed);
    const Put put{data<float>(result), width};
    products(from, rows, depth, w, panels, put);
  });
  return result;
}

// silu(gate) * up (rows, width) of x (rows, depth) times a packed matrix of gates and ups.
Tensor gated_op(const Tensor& x, const Tensor& packed, int64_t width) {
  const int64_t rows = x.size(0), depth = x.size(1), panels = packed.size(0);
  Tensor result = rows_like(x, rows, width), tall = rows_like(x, rows, depth).copy_(x);
  by_type(x, [&]<class T>(T*) {
    const T *from = data<T>(tall), *w = data<T>(packed);
    const Gate<T> gate{data<T>(result), width};
    products(from, rows, depth, w, panels, gate);
  });
  return result;
}

struct Place {  // where a step's tokens stand
  const float *cosines, *sines;
  const int64_t *positions, *slots;
  Place(const Tensor& cosines, const Tensor& sines, const Tensor& positions, const Tensor& slots)
      : cosines(data<float>(cosines)), sines(data<float>(sines)), positions(data<int64_t>(positions)), slots(data<int64_t>(slots)) {}
};

struct Plan {  // who looks where
  const int32_t *table, *tiles;
  int64_t width, num_tiles;
  Plan(const Tensor& table, const Tensor& tiles)
      : table(data<int32_t>(table)), tiles(data<int32_t>(tiles)), width(table.size(1)), num_tiles(tiles.size(0)) {}
};

// heads (tokens, heads + 2 kv_heads, dim) float32: returns the queries, stores keys and values.
Tensor rotate_op(const Tensor& heads, const Tensor& cosines, const Tensor& sines, const Tensor& positions, const Tensor& slots,
                 const Tensor& keys, const Tensor& values) {
  const int64_t tokens = heads.size(0), num_heads = heads.size(1) - 2 * keys.size(1);
  Tensor result = at::empty({tokens, num_heads, heads.size(2)}, keys.options());
  const Place at(cosines, sines, positions, slots);
  by_type(keys, [&]<class T>(T*) {
    const float* from = data<float>(heads);
    const Store<T> kv = store_of<T>(keys, values);
    T* queries = data<T>(result);
    rotate_and_store(from, tokens, num_heads, at.cosines, at.sines, at.positions, at.slots, kv, queries);
  });
  return result;
}

// queries (tokens, heads, dim): returns what they find, of the same size.
Tensor attend_op(const Tensor& queries, const Tensor& keys, const Tensor& values, const Tensor& table, const Tensor& tiles) {
  const int64_t num_heads = queries.size(1);
  Tensor result = at::empty_like(queries);
  const Plan plan(table, tiles);
  by_type(keys, [&]<class T>(T*) {
    const T* from = data<T>(queries);
    const Store<T> kv = store_of<T>(keys, values);
    T* out = data<T>(result);
    attend(from, num_heads, kv, plan.table, plan.width, plan.tiles, plan.num_tiles, out);
  });
  return result;
}

// One decoder layer: changes hidden (tokens, width) float32, and the store. `inner` is the width of the mlp.
void layer_op(const Tensor& hidden, const Tensor& attention_norm, const Tensor& qkv, const Tensor& output, const Tensor& mlp_norm,
              const Tensor& gate_up, const Tensor& down, const Tensor& cosines, const Tensor& sines, const Tensor& positions,
              const Tensor& slots, const Tensor& keys, const Tensor& values, const Tensor& table, const Tensor& tiles,
              int64_t num_heads, int64_t inner, double epsilon) {
  const int64_t tokens = hidden.size(0), width = hidden.size(1), dim = keys.size(3), kv_heads = keys.size(1);
  const int64_t looking = num_heads * dim, heads_width = looking + 2 * kv_heads * dim;
  const Tensor narrow_rows = rows_like(keys, tokens, std::max(width, looking)), query_rows = rows_like(keys, tokens, looking);
  const Tensor inner_rows = rows_like(keys, tokens, inner), head_rows = at::empty({tokens, heads_width}, hidden.options());
  const Place at(cosines, sines, positions, slots);
  const Plan plan(table, tiles);
  by_type(keys, [&]<class T>(T*) {
    float *residual = data<float>(hidden), *heads = data<float>(head_rows);
    T *x = data<T>(narrow_rows), *queries = data<T>(query_rows), *gated = data<T>(inner_rows);
    const float *first_norm = data<float>(attention_norm), *second_norm = data<float>(mlp_norm);
    const T *qkv_w = data<T>(qkv), *output_w = data<T>(output), *gate_up_w = data<T>(gate_up), *down_w = data<T>(down);
    const int64_t qkv_n = qkv.size(0), output_n = output.size(0), gate_up_n = gate_up.size(0), down_n = down.size(0);
    const Store<T> kv = store_of<T>(keys, values);
    normalise(residual, nullptr, tokens, width, first_norm, epsilon, x);
    products(x, tokens, width, qkv_w, qkv_n, Put{heads, heads_width});
    rotate_and_store(heads, tokens, num_heads, at.cosines, at.sines, at.positions, at.slots, kv, queries);
    attend(queries, num_heads, kv, plan.table, plan.width, plan.tiles, plan.num_tiles, x);
    products(x, tokens, looking, output_w, output_n, Add{residual, width});
    normalise(residual, nullptr, tokens, width, second_norm, epsilon, x);
    products(x, tokens, width, gate_up_w, gate_up_n, Gate<T>{gated, inner});
    products(gated, tokens, inner, down_w, down_n, Add{residual, width});
  });
}

// float32 logits (rows, vocabulary) of the hidden states at `index`.
Tensor logits_op(const Tensor& hidden, const Tensor& index, const Tensor& norm, double epsilon, const Tensor& head, int64_t vocabulary) {
  const int64_t rows = index.size(0), width = hidden.size(1), panels = head.size(0);
  Tensor result = at::empty({rows, vocabulary}, hidden.options()), narrow_rows = rows_like(head, rows, width);
  by_type(head, [&]<class T>(T*) {
    const float *from = data<float>(hidden), *by = data<float>(norm);
    const int64_t* at = data<int64_t>(index);
    const T* w = data<T>(head);
    T* x = data<T>(narrow_rows);
    const Put put{data<float>(result), vocabulary};
    normalise(from, at, rows, width, by, epsilon, x);
    products(x, rows, width, w, panels, put);
  });
  return result;
}

// One id (R,) per row of logits (R, V) float32, -1 for a row that is not made of numbers. numbers (R, 4) float64 are
// temperature, top_k, top_p and the level in [0, 1) to draw at.
Tensor draw_op(const Tensor& logits, const Tensor& numbers) {
  const int64_t rows = logits.size(0), size = logits.size(1);
  Tensor result = at::empty({rows}, logits.options().dtype(at::kLong));
  const float* from = data<float>(logits);
  const double* by = data<double>(numbers);
  int64_t* out = data<int64_t>(result);
  share(rows, [&](int64_t row) {
    thread_local std::vector<float> weights;
    thread_local std::vector<Candidate> kept;
    const double* number = by + 4 * row;
    out[row] = draw(from + row * size, size, number[0], number[1], number[2], number[3], weights, kept);
  });
  return result;
}

}  // namespace lamina

TORCH_LIBRARY(lamina, library) {
  library.def("norm(Tensor hidden, Tensor weight, float epsilon, Tensor like) -> Tensor");
  library.def("product(Tensor x, Tensor packed, int width) -> Tensor");
  library.def("gated(Tensor x, Tensor packed, int width) -> Tensor");
  library.def(
      "rotate(Tensor heads, Tensor cosines, Tensor sines, Tensor positions, Tensor slots, Tensor(a!) keys, Tensor(b!) values)"
      " -> Tensor");
  library.def("attend(Tensor queries, Tensor keys, Tensor values, Tensor table, Tensor tiles) -> Tensor");
  library.def(
      "layer(Tensor(a!) hidden, Tensor attention_norm, Tensor qkv, Tensor output, Tensor mlp_norm, Tensor gate_up, Tensor down,"
      " Tensor cosines, Tensor sines, Tensor positions, Tensor slots, Tensor(b!) keys, Tensor(c!) values, Tensor table,"
      " Tensor tiles, int num_heads, int inner, float epsilon) -> ()");
  library.def("draw(Tensor logits, Tensor numbers) -> Tensor");
  library.def("logits(Tensor hidden, Tensor index, Tensor norm, float epsilon, Tensor head, int vocabulary) -> Tensor");
}

TORCH_LIBRARY_IMPL(lamina, CPU, library) {
  library.impl("norm", lamina::norm_op);
  library.impl("product", lamina::product_op);
  library.impl("gated", lamina::gated_op);
  library.impl("rotate", lamina::rotate_op);
  library.impl("attend", lamina::attend_op);
  library.impl("layer", lamina::layer_op);
  library.impl("draw", lamina::draw_op);
  library.impl("logits", lamina::logits_op);
}
