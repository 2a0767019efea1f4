// Matrices whose weights have 2, 4 or 8 bits: a weight is a level of a codebook times the scale of 32 neighbours.
//
// Decoding is a shift and a lookup in one register, so that weights stay as small in memory as in their file, and memory is
// what a token waits for.

#pragma once

#include "small_batch.h"

namespace {

// Rows of chunks of 64 bytes, the last one filled up. Of a chunk's 16 words the lowest bits are the codes of the even
// ones of its first 32 weights, the next those of the odd ones, and so on; each 32 have a scale.
template <Int bits>
struct QuantizedMatrix {
  static constexpr Int chunk = 512 / bits;
  const std::uint32_t* codes;
  const Half* scales;
  Floats table;  // of 8 bits: how far levels are apart, and the code of 0
  Int width;

  template <Int tokens>
  void add_chunk(const float* x, Int stride, Int row, Int i, Floats (&sums)[tokens]) const {
    const Int at = row * chunks() + i / chunk;
    Words words;
    std::memcpy(&words, codes + at * lanes, sizeof words);
#pragma GCC unroll 8
    for (Int part = 0; part < chunk / pair; ++part) {
      const Floats even = level(words >> (2 * part * bits)), odd = level(words >> ((2 * part + 1) * bits));
      const float scale = wide(scales[at * (chunk / pair) + part]);
      for (Int t = 0; t < tokens; ++t) {
        const float* from = x + t * stride + i + part * pair;
        sums[t] += scale * (even * load(from) + odd * load(from + lanes));
      }
    }
  }
  // A chunk in bfloat16: words of an even weight below and an odd one above.
  void decode_chunk(Int row, Int i, Words (&to)[chunk / pair]) const {
    const Int at = row * chunks() + i / chunk;
    Words words;
    std::memcpy(&words, codes + at * lanes, sizeof words);
    for (Int part = 0; part < chunk / pair; ++part) {
      const float scale = wide(scales[at * (chunk / pair) + part]);
      const Words even = rounded_bits(level(words >> (2 * part * bits)) * scale);
      const Words odd = rounded_bits(level(words >> ((2 * part + 1) * bits)) * scale);
      to[part] = even >> 16 | (odd & 0xffff0000);
    }
  }
  float weight(Int row, Int i) const {
    const Int at = row * chunks() + i / chunk, part = i % chunk / pair, inside = i % pair;
    const std::uint32_t word = codes[at * lanes + inside / 2] >> ((2 * part + inside % 2) * bits);
    return level(Words{} + word)[0] * wide(scales[at * (chunk / pair) + part]);
  }
  void prefetch(Int row, Int i) const {
    const Int at = row * chunks() + i / chunk;
    __builtin_prefetch(codes + at * lanes, 0, 3);
    __builtin_prefetch(scales + at * (chunk / pair), 0, 3);
  }

  static Int whole_width(Int width) { return (width + chunk - 1) / chunk * chunk; }

 private:
  static Words rounded_bits(Floats values) {
    const Words parts = reinterpret_cast<Words>(values);
    return parts + 0x7fff + (parts >> 16 & 1);
  }
  Int chunks() const { return (width + chunk - 1) / chunk; }
  // The table repeats itself, so that higher bits do not count.
  Floats level(Words words) const {
    if constexpr (bits == 8) return (__builtin_convertvector(words & 255, Floats) - table[1]) * table[0];
    return __builtin_shuffle(table, words);
  }
};

// As Python names a matrix: its numbers, and of codes their scales and levels. 16 bits are bfloat16.
struct AnyMatrix {
  const void* weights;
  const Half* scales;
  const float* table;
};

template <typename Run>
void with_matrices(Int bits, const Run& run) {
  const auto quantized = [](auto bits) {
    return [](const AnyMatrix& any, Int width) {
      return QuantizedMatrix<decltype(bits)::value>{static_cast<const std::uint32_t*>(any.weights), any.scales,
                                                    load(any.table), width};
    };
  };
  if (bits == 2) run(quantized(std::integral_constant<Int, 2>()));
  if (bits == 4) run(quantized(std::integral_constant<Int, 4>()));
  if (bits == 8) run(quantized(std::integral_constant<Int, 8>()));
  if (bits == 16)
    run([](const AnyMatrix& any, Int width) {
      return Bfloat16Matrix{static_cast<const Bfloat16*>(any.weights), width};
    });
}

}  // namespace
