// Matrices whose weights have 2, 4 or 8 bits: a weight is a level of a codebook times the scale of 32 neighbours.
//
// The tokens of a product are rounded to 8 bits, 32 numbers at a time by their largest magnitude, so that four products of
// small integers are one instruction (AVX-512 VNNI, AVX-VNNI). Sixteen rows of a matrix lie interleaved, a row in each
// lane: a token's numbers are the same for all lanes, and a lane's sum needs no other. Few tokens wait for the memory,
// many for the arithmetic: a weight is unpacked once for eight of them.

#pragma once

#include "small_batch.h"
#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace {

constexpr Int block = 64;  // tokens that stay in a cache while rows pass
constexpr Int group = 32, quads = group / 4;  // of a row: neighbours with one scale, four in a word
using Integers = std::int32_t __attribute__((vector_size(4 * lanes)));

// Adds in each lane the products of four unsigned bytes of `codes` and four signed ones of `quad`.
inline Integers add_products(Integers sums, Words codes, std::int32_t quad) {
#if defined(__AVX512VNNI__)
  return (Integers)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)codes, _mm512_set1_epi32(quad));
#elif defined(__AVXVNNI__)
  __m256i parts[2], half_codes[2];
  std::memcpy(parts, &sums, sizeof parts);
  std::memcpy(half_codes, &codes, sizeof half_codes);
  for (Int i = 0; i < 2; ++i) parts[i] = _mm256_dpbusd_avx_epi32(parts[i], half_codes[i], _mm256_set1_epi32(quad));
  std::memcpy(&sums, parts, sizeof parts);
  return sums;
#else
  for (Int byte = 0; byte < 4; ++byte)
    sums += (Integers)(codes >> (8 * byte) & 255) * std::int32_t{static_cast<std::int8_t>(quad >> (8 * byte))};
  return sums;
#endif
}

inline Floats load_wide(const Half* from) {
#ifdef __AVX512F__
  return (Floats)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#else
  float values[lanes];
  for (Int lane = 0; lane < lanes; ++lane) values[lane] = wide(from[lane]);
  return load(values);
#endif
}

using Bytes = std::uint8_t __attribute__((vector_size(4 * lanes)));

// The levels of a codebook, in 8 bits: a byte b stands for (b - zero) / unit, and a code is its byte, or the number of one.
struct Levels {
  float zero, unit;
  Bytes table;
};

// Tokens as a product with quantised weights reads them.
class QuantizedTokens {
 public:
  QuantizedTokens(Int count, Int width, const Levels& levels)
      : width_(width), groups_(width / group), zero_(levels.zero), unit_(levels.unit), quads_(count * width / 4),
        factors_(count * groups_), offsets_(count * groups_) {}

  void set(Int token, const float* x) {
    for (Int g = 0; g < groups_; ++g, x += group) {
      float largest = 0, nothing = 0;  // unless there are infinities or NaN
#pragma omp simd reduction(max : largest) reduction(+ : nothing)
      for (Int i = 0; i < group; ++i) {
        const float magnitude = std::abs(x[i]);
        largest = magnitude > largest ? magnitude : largest;
        nothing += 0 * x[i];
      }
      const float inverse = largest > 0 && nothing == 0 ? 127 / largest : 0;
      std::int32_t values[group], sum = 0;
#pragma omp simd reduction(+ : sum)
      for (Int i = 0; i < group; ++i) {
        const float scaled = x[i] * inverse;
        values[i] = static_cast<std::int32_t>(scaled + std::copysign(0.5f, scaled));
        sum += values[i];
      }
      const float factor = largest / 127 / unit_ + nothing;
      auto* bytes = reinterpret_cast<std::int8_t*>(quads_.data()) + token * width_ + g * group;
      for (Int i = 0; i < group; ++i) bytes[i] = static_cast<std::int8_t>(values[i]);
      factors_[token * groups_ + g] = factor;
      offsets_[token * groups_ + g] = -zero_ * sum * factor;
    }
  }
  const std::int32_t* quads_of(Int token) const { return quads_.data() + token * width_ / 4; }
  const float* factors_of(Int token) const { return factors_.data() + token * groups_; }
  const float* offsets_of(Int token) const { return offsets_.data() + token * groups_; }

 private:
  Int width_, groups_;
  float zero_, unit_;
  std::vector<std::int32_t> quads_;
  std::vector<float> factors_, offsets_;  // of a group: what its sum is multiplied with, and what is added then
};

// Tiles of 16 rows, the last one filled up. Of a group of 32 columns a tile has 16 scales, then `bits` vectors of 64 bytes,
// lane r of row r: four neighbours to a word, the first ones in the lowest bits of each byte.
template <Int bits, bool has_table>
struct QuantizedMatrix {
  static constexpr Int per_byte = 8 / bits;
  static constexpr Int group_bytes = lanes * sizeof(Half) + group * lanes * bits / 8;
  const char* blocks;
  Levels levels;
  Int width;

  QuantizedTokens tokens(Int count) const { return QuantizedTokens(count, width, levels); }

  void prefetch(Int height) const {
    const char* first = blocks + Rows((height + lanes - 1) / lanes).begin * (width / group) * group_bytes;
    for (Int i = 0; i < ahead; i += 4 * lanes) __builtin_prefetch(first + i, 0, 3);
  }

  // Calls `use(token, row, sum)` for this thread's rows.
  template <typename Use>
  void multiply(const QuantizedTokens& x, Int count, Int height, const Use& use) const {
    const Rows tiles((height + lanes - 1) / lanes);
    for (Int begin = 0; begin < count; begin += block)
      for (Int tile = tiles.begin; tile < tiles.end; ++tile) {
        Int token = begin;
        const Int end = std::min(begin + block, count);
        for (; token + 8 <= end; token += 8) multiply_tile<8>(x, token, tile, height, use);
        for (; token + 4 <= end; token += 4) multiply_tile<4>(x, token, tile, height, use);
        for (; token < end; ++token) multiply_tile<1>(x, token, tile, height, use);
      }
  }

 private:
  template <Int count, typename Use>
  void multiply_tile(const QuantizedTokens& x, Int first, Int tile, Int height, const Use& use) const {
    Floats sums[count] = {};
    const Int groups = width / group;
    const std::int32_t* from[count];
    const float *factors[count], *offsets[count];
    for (Int t = 0; t < count; ++t) {
      from[t] = x.quads_of(first + t);
      factors[t] = x.factors_of(first + t);
      offsets[t] = x.offsets_of(first + t);
    }
    for (Int g = 0; g < groups; ++g) {
      const char* at = blocks + (tile * groups + g) * group_bytes;
      for (Int i = 0; i < group_bytes; i += 4 * lanes) __builtin_prefetch(at + ahead + i, 0, 3);
      const Floats scale = load_wide(reinterpret_cast<const Half*>(at));
      Words bytes[quads];
      unpack(at + lanes * sizeof(Half), bytes);
      for (Int t = 0; t < count; ++t) {
        Integers even = {}, odd = {};  // two chains of instructions, that need not wait for one another
#pragma GCC unroll 4
        for (Int i = 0; i < quads; i += 2) {
          even = add_products(even, bytes[i], from[t][g * quads + i]);
          odd = add_products(odd, bytes[i + 1], from[t][g * quads + i + 1]);
        }
        sums[t] += scale * (__builtin_convertvector(even + odd, Floats) * factors[t][g] + offsets[t][g]);
      }
    }
    const Int rows = std::min(lanes, height - tile * lanes);
    for (Int t = 0; t < count; ++t) {
      float parts[lanes];
      std::memcpy(parts, &sums[t], sizeof parts);
      for (Int row = 0; row < rows; ++row) use(first + t, tile * lanes + row, parts[row]);
    }
  }

  // The bytes of levels of a group.
  void unpack(const char* codes, Words (&bytes)[quads]) const {
#pragma GCC unroll 8
    for (Int i = 0; i < quads; ++i) {
      Words words;
      std::memcpy(&words, codes + i / per_byte * sizeof words, sizeof words);
      bytes[i] = words >> (i % per_byte * bits) & low_bits;
      if constexpr (has_table) bytes[i] = (Words)__builtin_shuffle(levels.table, (Bytes)bytes[i]);
    }
  }
  static constexpr std::uint32_t low_bits = ((1u << bits) - 1) * 0x01010101u;
};

// Calls `run` with what makes matrices of weights in memory and their width. Levels are zero, unit, whether there is a table,
// and its 16 bytes; 16 bits are bfloat16.
template <typename Run>
void with_matrices(Int bits, const float* levels, const Run& run) {
  const auto quantized = [levels](auto bits, auto has_table) {
    Levels book{levels[0], levels[1], {}};
    for (Int i = 0; i < 4 * lanes; ++i) book.table[i] = static_cast<std::uint8_t>(levels[3 + i % 16]);
    return [book](const void* weights, Int width) {
      return QuantizedMatrix<decltype(bits)::value, decltype(has_table)::value>{static_cast<const char*>(weights), book,
                                                                                width};
    };
  };
  using std::integral_constant;
  if (bits == 2) run(quantized(integral_constant<Int, 2>(), std::false_type()));
  if (bits == 4 && levels[2] == 0) run(quantized(integral_constant<Int, 4>(), std::false_type()));
  if (bits == 4 && levels[2] != 0) run(quantized(integral_constant<Int, 4>(), std::true_type()));
  if (bits == 8) run(quantized(integral_constant<Int, 8>(), std::false_type()));
  if (bits == 16)
    run([](const void* weights, Int width) { return Bfloat16Matrix{static_cast<const Bfloat16*>(weights), width}; });
}

}  // namespace
