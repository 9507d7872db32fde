// Paged attention over the flat tokens of a step.
//
// A context is looked at in parts of kPart positions, each of which gives what it holds alone; what a query finds is put
// together in the order of the parts. So its answer depends on its own tokens alone: not on the number of threads, not on
// who else is in the step, and not on how its prompt was cut. One exception: where there is AMX, many queries over keys and
// values of bfloat16 go by it, which rounds its sums otherwise than the vector units do for the few of a decode.
#pragma once
#include <vector>

#include "amx_look.h"
#include "rows.h"
#include "threads.h"
#include "vector_look.h"

namespace lamina {

struct Plan {  // who looks where: pages (rows, width); row, first token, tokens and first position of each tile
  const int32_t *table, *tiles;
  int64_t width, num_tiles, window;  // a window of 0 has no end
};

struct Task {  // some queries of a tile for one kv head, in some of the parts that they see
  int64_t tile, head, query, first_part, end_part;
};

template <class T, class K>
struct Attention {  // of one step's queries over one layer's store
  const T* queries;
  int64_t num_heads;
  Store<K> kv;
  Plan plan;
  T* out;

  void run() const {
    const std::vector<Task> whole = tasks();
    const bool is_cut = (int64_t)whole.size() < kPerThread * at::get_num_threads();
    const std::vector<Task> cut = is_cut ? parts_of(whole) : whole;
    if (cut.size() == whole.size())
      return share(whole.size(), [&](int64_t at) {
        const Look<T> look = look_of(whole[at]);
        thread_local std::vector<float> memory;
        memory.resize(Found::size(look.count, kv.dim));
        search(look, whole[at], memory.data()).finish(look, kv.dim);
      });
    std::vector<std::vector<float>> memories(cut.size());
    share(cut.size(), [&](int64_t at) {
      const Look<T> look = look_of(cut[at]);
      memories[at].resize(Found::size(look.count, kv.dim));
      search(look, cut[at], memories[at].data());
    });
    put_together(cut, memories);
  }

 private:
  static constexpr int64_t kPerThread = 4;  // where there are fewer tasks, they are cut into their parts

  int64_t first_of(int64_t position) const { return plan.window ? std::max<int64_t>(0, position + 1 - plan.window) : 0; }

  std::vector<Task> tasks() const {
    const int64_t group = num_heads / kv.kv_heads;
    std::vector<Task> all;
    for (int64_t tile = 0; tile < plan.num_tiles; ++tile) {
      const int32_t *its = plan.tiles + 4 * tile, count = its[2], position = its[3];
      for (int64_t query = 0; query < count * group; query += kQueries) {
        const int64_t last = position + std::min(query + kQueries - 1, count * group - 1) / group;
        const int64_t first_part = first_of(position + query / group) / kPart, end_part = last / kPart + 1;
        for (int64_t head = 0; head < kv.kv_heads; ++head) all.push_back({tile, head, query, first_part, end_part});
      }
    }
    return all;
  }

  static std::vector<Task> parts_of(const std::vector<Task>& tasks) {
    std::vector<Task> parts;
    for (Task task : tasks)
      for (int64_t part = task.first_part; part < task.end_part; ++part) {
        parts.push_back(task);
        parts.back().first_part = part, parts.back().end_part = part + 1;
      }
    return parts;
  }

  Look<T> look_of(const Task& task) const {
    const int64_t group = num_heads / kv.kv_heads;
    const int32_t* tile = plan.tiles + 4 * task.tile;
    Look<T> look;
    look.head = task.head, look.pages = plan.table + tile[0] * plan.width;
    look.count = std::min(kQueries, tile[2] * group - task.query);
    for (int64_t i = 0; i < look.count; ++i) {
      const int64_t token = (task.query + i) / group, head = task.head * group + (task.query + i) % group;
      const int64_t at = ((tile[1] + token) * num_heads + head) * kv.dim;
      look.queries[i] = queries + at, look.outs[i] = out + at;
      look.firsts[i] = first_of(tile[3] + token), look.limits[i] = tile[3] + token + 1;
    }
    return look;
  }

  // Go through the parts of a task in order; returns what was found, in `memory`.
  Found search(const Look<T>& look, const Task& task, float* memory) const {
    thread_local std::vector<float> later_memory;
    Found found(memory, look.count);
    const int64_t last = look.last();
    for (int64_t part = task.first_part; part < task.end_part; ++part) {
      const Slots<K> slots(kv, look.head, look.pages, part * kPart, std::min((part + 1) * kPart, last));
      if (part == task.first_part) {
        search(look, slots, found);
        continue;
      }
      later_memory.resize(Found::size(look.count, kv.dim));
      const Found later(later_memory.data(), look.count);
      search(look, slots, later);
      found.merge(later, look.count, kv.dim);
    }
    return found;
  }

  void search(const Look<T>& look, const Slots<K>& slots, const Found& found) const {
    const float scale = 1.0f / std::sqrt((float)kv.dim);
#if defined(__AMX_BF16__) && defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, BFloat16> && std::is_same_v<K, BFloat16>)
      if (look.count > kFewQueries && kv.dim % 32 == 0 && may_use_amx()) return look_by_amx(look, slots, kv.dim, scale, found);
#endif
    (kv.dim == 64 ? look_by_vectors<64, T, K> : look_by_vectors<0, T, K>)(look, slots, kv.dim, scale, found);
  }

  void put_together(const std::vector<Task>& parts, std::vector<std::vector<float>>& memories) const {
    for (size_t at = 0; at < parts.size();) {
      const Look<T> look = look_of(parts[at]);
      Found found(memories[at].data(), look.count);
      const int64_t part = parts[at].first_part;
      for (++at; at < parts.size() && parts[at].first_part > part && is_same_look(parts[at], parts[at - 1]); ++at)
        found.merge(Found(memories[at].data(), look.count), look.count, kv.dim);
      found.finish(look, kv.dim);
    }
  }

  static bool is_same_look(const Task& a, const Task& b) { return a.tile == b.tile && a.head == b.head && a.query == b.query; }
};

// queries, out (tokens, heads, dim).
template <class T, class K>
void attend(const T* queries, int64_t num_heads, const Store<K>& kv, const Plan& plan, T* out) {
  Attention<T, K>{queries, num_heads, kv, plan, out}.run();
}

}  // namespace lamina
