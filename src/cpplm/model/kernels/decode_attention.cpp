// Attention of a few new tokens per sequence over the blocks of a cache, read where they lie.
//
// decode_attention.py says what the arguments are. Queries, keys and values are float32 or bfloat16, everything
// is computed in float32. Memory is read in its own order, token after token with all
// heads, because that is what takes the time.

#include <algorithm>
#include <cmath>
#include <vector>

#include "numbers.h"

namespace {

// e^x for x <= 0 as 2^n e^r with |r| <= ln(2) / 2: the Taylor series up to r^7 is exact to float32. The C
// library's cannot be vectorised without giving up NaN, which has to come out here. Below -87 it is e^-87.
inline float exponential(float x) {
  const float bounded = x < -87.0f ? -87.0f : x;            // NaN for NaN
  const float number = x > -87.0f ? x : -87.0f;             // a number always, so that it has an integer
  const float n = std::floor(number * 1.44269504f + 0.5f);  // log2(e)
  const float r = bounded - n * 0.693147181f;               // ln(2)
  float series = 1.0f / 5040;
  series = series * r + 1.0f / 720;
  series = series * r + 1.0f / 120;
  series = series * r + 1.0f / 24;
  series = series * r + 1.0f / 6;
  series = series * r + 0.5f;
  series = series * r + 1.0f;
  series = series * r + 1.0f;
  const std::uint32_t bits = static_cast<std::uint32_t>(static_cast<std::int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &bits, sizeof power);
  return series * power;
}

template <typename Element>
inline float dot(const float* query, const Element* key, Int dim) {
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Int d = 0; d < dim; ++d) sum += query[d] * wide(key[d]);
  return sum;
}

template <typename Element>
inline void add(float* sum, float weight, const Element* value, Int dim) {
#pragma omp simd
  for (Int d = 0; d < dim; ++d) sum[d] += weight * wide(value[d]);
}

// Scores to weights, in place; returns the sum that they are still to be divided by.
inline float exponentials(float* scores, Int count) {
  float highest = scores[0];
#pragma omp simd reduction(max : highest)
  for (Int s = 0; s < count; ++s) highest = std::max(highest, scores[s]);
  float sum = 0;
#pragma omp simd reduction(+ : sum)
  for (Int s = 0; s < count; ++s) {
    scores[s] = exponential(scores[s] - highest);
    sum += scores[s];
  }
  return sum;
}

// The call, the same for all rows; sizes as in decode_attention.py.
template <typename Element>
struct Call {
  const Element* keys;
  const Element* values;
  const Element* query;
  Element* output;
  Int groups, per_group, dim, block_size, window;
  float scale;
};

// The new token at `position` of one sequence, whose table begins with its block number `first`. Its heads lie
// at `offset` in query and output; this does those of the groups from `begin` to `end`.
template <Int fixed_dim, typename Element>
void attend(const Call<Element>& call, const Int* blocks, Int first, Int position, Int offset, Int begin, Int end,
            std::vector<float>& room) {
  const Int dim = fixed_dim ? fixed_dim : call.dim, per_group = call.per_group;
  const Int heads = (end - begin) * per_group;
  const Int low = call.window < 0 ? 0 : std::max<Int>(0, position - call.window);
  const Int count = position - low + 1;
  const auto row = [&](const Element* pool, Int s) {
    const Int at = low + s, block = blocks[at / call.block_size - first];
    return pool + ((block * call.block_size + at % call.block_size) * call.groups + begin) * dim;
  };
  // Behind one another: scores, queries, and the sums of values.
  room.assign(heads * (count + 2 * dim), 0);
  float *scores = room.data(), *query = scores + heads * count, *mixed = query + heads * dim;
  offset += begin * per_group * dim;
  for (Int i = 0; i < heads * dim; ++i) query[i] = wide(call.query[offset + i]);
  for (Int s = 0; s < count; ++s) {
    const Element* key = row(call.keys, s);
    for (Int h = 0; h < heads; ++h)
      scores[h * count + s] = call.scale * dot(query + h * dim, key + h / per_group * dim, dim);
  }
  for (Int h = 0; h < heads; ++h) {
    float* of_head = scores + h * count;
    const float share = 1 / exponentials(of_head, count);
#pragma omp simd
    for (Int s = 0; s < count; ++s) of_head[s] *= share;
  }
  for (Int s = 0; s < count; ++s) {
    const Element* value = row(call.values, s);
    for (Int h = 0; h < heads; ++h)
      add(mixed + h * dim, scores[h * count + s], value + h / per_group * dim, dim);
  }
  for (Int i = 0; i < heads * dim; ++i) call.output[offset + i] = narrow<Element>(mixed[i]);
}

template <typename Element>
void attend_all(const Element* keys, const Element* values, const Element* query, Element* output,
                const Int* blocks, const Int* places, Int rows, Int tokens, Int groups, Int per_group, Int dim,
                Int block_size, Int table_width, Int window, Int threads, float scale) {
  const Call<Element> call{keys, values, query, output, groups, per_group, dim, block_size, window, scale};
  const Int width = groups * per_group * dim;
  const auto one = dim == 64 ? attend<64, Element> : dim == 128 ? attend<128, Element> : attend<0, Element>;
  // Few rows are cut up by heads, so that all threads have something to do.
  const Int parts = threads == 1 ? 1 : std::min(groups, (4 * threads + rows - 1) / rows);
  std::memset(output, 0, sizeof(Element) * rows * tokens * width);
#pragma omp parallel num_threads(threads)
  {
    std::vector<float> room;
#pragma omp for schedule(dynamic)
    for (Int task = 0; task < rows * parts; ++task) {
      const Int row = task / parts, part = task % parts;
      const Int *place = places + 3 * row, start = place[0], count = place[1], first = place[2];
      for (Int t = 0; t < count; ++t)
        one(call, blocks + row * table_width, first, start + t, (row * tokens + t) * width,
            groups * part / parts, groups * (part + 1) / parts, room);
    }
  }
}

}  // namespace

extern "C" void attend_float32(const float* keys, const float* values, const float* query, float* output,
                               const Int* blocks, const Int* places, Int rows, Int tokens, Int groups,
                               Int per_group, Int dim, Int block_size, Int table_width, Int window, Int threads,
                               float scale) {
  attend_all(keys, values, query, output, blocks, places, rows, tokens, groups, per_group, dim, block_size,
             table_width, window, threads, scale);
}

extern "C" void attend_bfloat16(const Bfloat16* keys, const Bfloat16* values, const Bfloat16* query, Bfloat16* output,
                               const Int* blocks, const Int* places, Int rows, Int tokens, Int groups,
                               Int per_group, Int dim, Int block_size, Int table_width, Int window, Int threads,
                               float scale) {
  attend_all(keys, values, query, output, blocks, places, rows, tokens, groups, per_group, dim, block_size,
             table_width, window, threads, scale);
}
