// The engine's CPU kernels: one decoder layer over the flat tokens of a step, the logits, and each of their parts alone.
//
// One translation unit: the headers beside this file hold the parts (threads, vectors, products of floats and of 8 and 4
// bits, rows, attention, the layer, draw), here are their borders to torch. Loops are shared out among the threads that are
// free, see threads.h. A packed matrix is of type int8 where it has 8 bits, uint8 where it has 4, else of its values' type.
#include <ATen/ATen.h>
#include <torch/library.h>

#include "draw.h"
#include "layer.h"

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

// One layer's store: keys and values, and what int8 is multiplied by (empty for other types).
struct Kept {
  const Tensor &keys, &values, &key_scales, &value_scales;

  template <class Run>
  void by_type(Run run) const {
    switch (keys.scalar_type()) {
      case at::kFloat: return run(as<float>());
      case at::kBFloat16: return run(as<BFloat16>());
      case at::kChar: return run(as<int8_t>());
      default: TORCH_CHECK(false, "keys of float32, bfloat16 or int8, not ", keys.scalar_type());
    }
  }

 private:
  template <class K>
  Store<K> as() const {
    const bool has_scales = std::is_same_v<K, int8_t>;
    float *by_key = has_scales ? data<float>(key_scales) : nullptr, *by_value = has_scales ? data<float>(value_scales) : nullptr;
    return {data<K>(keys), data<K>(values), by_key, by_value, keys.size(1), keys.size(2), keys.size(3)};
  }
};

template <class T>
void read(const Tensor& packed, Plain<T>& to) {
  to = {data<T>(packed), packed.stride(0) / kPanel, packed.size(0)};
}

void read(const Tensor& packed, Int8& to) { to = {data<int8_t>(packed), packed.size(1) / kPanel - 8, packed.size(0)}; }

void read(const Tensor& packed, Int4& to) { to = {data<uint8_t>(packed), packed.size(1) / kBlock * kGroup, packed.size(0)}; }

template <class W>
W matrix_of(const Tensor& packed) {
  W matrix;
  read(packed, matrix);
  return matrix;
}

// Run for the kind of matrix that is packed; T is the type of one that is not quantised.
template <class T, class Run>
void by_matrix(const Tensor& packed, Run run) {
  if (packed.scalar_type() == at::kChar) return run(matrix_of<Int8>(packed));
  if (packed.scalar_type() == at::kByte) return run(matrix_of<Int4>(packed));
  run(matrix_of<Plain<T>>(packed));
}

Tensor space_of(int64_t rows, int64_t row_bytes) { return at::empty({rounded_up(rows, kTall) * row_bytes}, at::kByte); }

template <class Rows>
struct Room {  // memory for `count` rows that enter a product, of values or of codes
  Tensor memory;
  Rows rows;
  Room(int64_t count, int64_t width) : memory(space_of(count, row_bytes(width))) {
    if constexpr (std::is_pointer_v<Rows>)
      rows = (Rows)memory.data_ptr();
    else
      rows = Rows(memory.data_ptr(), width);
  }
  static int64_t row_bytes(int64_t width) {
    if constexpr (std::is_pointer_v<Rows>) return width * sizeof(*Rows());
    else return Rows::stride_of(width);
  }
};

Tensor norm_op(const Tensor& hidden, const Tensor& weight, double epsilon, const Tensor& like) {
  const int64_t rows = hidden.size(0), width = hidden.size(1);
  Tensor result = at::empty({rows, width}, like.options());
  by_type(like, [&]<class T>(T*) {
    const float *from = data<float>(hidden), *by = data<float>(weight);
    T* out = data<T>(result);
    normalise(from, nullptr, rows, width, by, epsilon, out);
  });
  return result;
}

// x (rows, width) float32: its codes (rows, width) int8, and a scale (rows,) float32 each.
std::tuple<Tensor, Tensor> quantise_op(const Tensor& x) {
  const int64_t rows = x.size(0), width = x.size(1);
  Tensor codes = at::empty({rows, width}, at::kChar), scales = at::empty({rows}, at::kFloat);
  const Room<Quantised> room(rows, width);
  const float* from = data<float>(x);
  quantise(from, rows, width, room.rows);
  for (int64_t row = 0; row < rows; ++row) {
    std::copy_n(room.rows.codes(row), width, data<int8_t>(codes) + row * width);
    data<float>(scales)[row] = room.rows.scale(row);
  }
  return {codes, scales};
}

// Multiply x (rows, depth) with a packed matrix; a quantised one meets quantised rows.
template <class T, class Take>
void multiply(const Tensor& x, const Tensor& packed, Take take) {
  const int64_t rows = x.size(0), width = x.size(1);
  const Tensor tall = at::constant_pad_nd(x, {0, 0, 0, rounded_up(rows, kTall) - rows});
  T* from = data<T>(tall);
  by_matrix<T>(packed, [&]<class W>(const W& matrix) {
    const Room<typename Between<T, W>::Rows> room(rows, width);
    products(as_rows(from, rows, width, room.rows), rows, matrix, take);
  });
}

// x (rows, depth) times a packed matrix, as float32 (rows, width).
Tensor product_op(const Tensor& x, const Tensor& packed, int64_t width) {
  Tensor result = at::empty({x.size(0), width}, x.options().dtype(at::kFloat));
  by_type(x, [&]<class T>(T*) { multiply<T>(x, packed, Put{data<float>(result), width}); });
  return result;
}

// silu(gate) * up (rows, width) of x (rows, depth) times a packed matrix of gates and ups.
Tensor gated_op(const Tensor& x, const Tensor& packed, int64_t width) {
  Tensor result = at::empty({x.size(0), width}, x.options());
  by_type(x, [&]<class T>(T*) { multiply<T>(x, packed, Gate<T>{data<T>(result), width}); });
  return result;
}

Place place_of(const Tensor& cosines, const Tensor& sines, const Tensor& positions, const Tensor& slots) {
  return {data<float>(cosines), data<float>(sines), data<int64_t>(positions), data<int64_t>(slots)};
}

Plan plan_of(const Tensor& table, const Tensor& tiles, int64_t window) {
  return {data<int32_t>(table), data<int32_t>(tiles), table.size(1), tiles.size(0), window};
}

// heads (tokens, heads + 2 kv_heads, dim) float32: returns the queries in the type of `like`, stores keys and values.
Tensor rotate_op(const Tensor& heads, const Tensor& like, const Tensor& cosines, const Tensor& sines, const Tensor& positions,
                 const Tensor& slots, const Tensor& keys, const Tensor& values, const Tensor& key_scales, const Tensor& value_scales) {
  const int64_t tokens = heads.size(0), num_heads = heads.size(1) - 2 * keys.size(1);
  Tensor result = at::empty({tokens, num_heads, heads.size(2)}, like.options());
  const Place at = place_of(cosines, sines, positions, slots);
  by_type(like, [&]<class T>(T*) {
    const float* from = data<float>(heads);
    T* queries = data<T>(result);
    Kept{keys, values, key_scales, value_scales}.by_type([&](const auto& kv) {
      rotate_and_store(from, tokens, num_heads, at.cosines, at.sines, at.positions, at.slots, kv, queries);
    });
  });
  return result;
}

// queries (tokens, heads, dim): returns what they find, of the same size; each sees at most `window` positions, 0 for all.
Tensor attend_op(const Tensor& queries, const Tensor& keys, const Tensor& values, const Tensor& key_scales, const Tensor& value_scales,
                 const Tensor& table, const Tensor& tiles, int64_t window) {
  Tensor result = at::empty_like(queries);
  const Plan plan = plan_of(table, tiles, window);
  by_type(queries, [&]<class T>(T*) {
    const T* from = data<T>(queries);
    T* out = data<T>(result);
    Kept{keys, values, key_scales, value_scales}.by_type([&](const auto& kv) { attend(from, queries.size(1), kv, plan, out); });
  });
  return result;
}

// One decoder layer: changes hidden (tokens, width) float32, and the store. `like` has the type of what is not quantised;
// `inner` is the width of the mlp.
void layer_op(const Tensor& hidden, const Tensor& like, const Tensor& attention_norm, const Tensor& qkv, const Tensor& output,
              const Tensor& mlp_norm, const Tensor& gate_up, const Tensor& down, const Tensor& cosines, const Tensor& sines,
              const Tensor& positions, const Tensor& slots, const Tensor& keys, const Tensor& values, const Tensor& key_scales,
              const Tensor& value_scales, const Tensor& table, const Tensor& tiles, int64_t window, int64_t num_heads, int64_t inner,
              double epsilon) {
  const int64_t tokens = hidden.size(0), width = hidden.size(1), dim = keys.size(3), looking = num_heads * dim;
  const Sizes size{tokens, width, looking, looking + 2 * keys.size(1) * dim, num_heads, inner, (float)epsilon};
  const Place at = place_of(cosines, sines, positions, slots);
  const Plan plan = plan_of(table, tiles, window);
  const Kept kept{keys, values, key_scales, value_scales};
  by_type(like, [&]<class T>(T*) {
    by_matrix<T>(qkv, [&]<class W>(const W& qkv_matrix) {
      using In = typename Between<T, W>::Rows;
      using Inner = typename Between<T, W>::Inner;
      const Room<In> rows(tokens, std::max(width, looking)), inner_rows(tokens, inner);
      const Room<Inner*> gated(tokens, inner);
      const Room<float*> heads(tokens, size.heads_width);
      const Room<T*> queries(tokens, looking), found(tokens, looking);
      const Matrices<W> matrices{data<float>(attention_norm), data<float>(mlp_norm), qkv_matrix, matrix_of<W>(output),
                                 matrix_of<W>(gate_up), matrix_of<W>(down)};
      const Space<T, W> space{rows.rows, inner_rows.rows, gated.rows, heads.rows, queries.rows, found.rows};
      kept.by_type([&](const auto& kv) { layer(data<float>(hidden), matrices, size, at, plan, kv, space); });
    });
  });
}

// float32 logits (rows, vocabulary) of the hidden states at `index`.
Tensor logits_op(const Tensor& hidden, const Tensor& index, const Tensor& norm, double epsilon, const Tensor& head, int64_t vocabulary) {
  const int64_t rows = index.size(0), width = hidden.size(1);
  Tensor result = at::empty({rows, vocabulary}, hidden.options());
  const auto run = [&]<class T>(T*) {
    by_matrix<T>(head, [&]<class W>(const W& matrix) {
      const Room<typename Between<T, W>::Rows> room(rows, width);
      normalise(data<float>(hidden), data<int64_t>(index), rows, width, data<float>(norm), epsilon, room.rows);
      products(room.rows, rows, matrix, Put{data<float>(result), vocabulary});
    });
  };
  head.scalar_type() == at::kFloat ? run((float*)nullptr) : run((BFloat16*)nullptr);
  return result;
}

// Rows of a table as float32 (tokens, width): of a plain one (rows, width), or of a packed one of 8 bits.
Tensor embed_op(const Tensor& tokens, const Tensor& table, int64_t width) {
  const int64_t count = tokens.size(0);
  Tensor result = at::empty({count, width}, at::kFloat);
  const int64_t* ids = data<int64_t>(tokens);
  float* out = data<float>(result);
  if (table.scalar_type() == at::kChar) {
    const Int8 matrix = matrix_of<Int8>(table);
    share_rows(count, [&](int64_t row) { unpack_row(matrix, ids[row], width, out + row * width); });
    return result;
  }
  by_type(table, [&]<class T>(T*) {
    const T* from = data<T>(table);
    share_rows(count, [&](int64_t row) {
      for (int64_t i = 0; i < width; i += kLanes)
        store(out + row * width + i, load(from + ids[row] * width + i, width - i), width - i);
    });
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
  library.def("quantise(Tensor x) -> (Tensor, Tensor)");
  library.def("embed(Tensor tokens, Tensor table, int width) -> Tensor");
  library.def("product(Tensor x, Tensor packed, int width) -> Tensor");
  library.def("gated(Tensor x, Tensor packed, int width) -> Tensor");
  library.def(
      "rotate(Tensor heads, Tensor like, Tensor cosines, Tensor sines, Tensor positions, Tensor slots, Tensor(a!) keys,"
      " Tensor(b!) values, Tensor(c!) key_scales, Tensor(d!) value_scales) -> Tensor");
  library.def(
      "attend(Tensor queries, Tensor keys, Tensor values, Tensor key_scales, Tensor value_scales, Tensor table, Tensor tiles,"
      " int window) -> Tensor");
  library.def(
      "layer(Tensor(a!) hidden, Tensor like, Tensor attention_norm, Tensor qkv, Tensor output, Tensor mlp_norm, Tensor gate_up, Tensor down,"
      " Tensor cosines, Tensor sines, Tensor positions, Tensor slots, Tensor(b!) keys, Tensor(c!) values, Tensor(d!) key_scales,"
      " Tensor(e!) value_scales, Tensor table, Tensor tiles, int window, int num_heads, int inner, float epsilon) -> ()");
  library.def("draw(Tensor logits, Tensor numbers) -> Tensor");
  library.def("logits(Tensor hidden, Tensor index, Tensor norm, float epsilon, Tensor head, int vocabulary) -> Tensor");
}

TORCH_LIBRARY_IMPL(lamina, CPU, library) {
  library.impl("norm", lamina::norm_op);
  library.impl("quantise", lamina::quantise_op);
  library.impl("embed", lamina::embed_op);
  library.impl("product", lamina::product_op);
  library.impl("gated", lamina::gated_op);
  library.impl("rotate", lamina::rotate_op);
  library.impl("attend", lamina::attend_op);
  library.impl("layer", lamina::layer_op);
  library.impl("draw", lamina::draw_op);
  library.impl("logits", lamina::logits_op);
}
