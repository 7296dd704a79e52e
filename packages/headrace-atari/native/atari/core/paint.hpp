// Pixels: the colours of a stretch of a scanline, from the masks of the objects.
#pragma once

#include "line_mask.hpp"
#include "platform.hpp"
#include "state.hpp"

namespace headrace::atari {

// Where each colour shows. The masks are disjoint; what is in none is background.
template <class Bits>
struct Layers {
  Bits p0, p1, playfield;
};

// `Bits`: 64 pixels of a line, or all. `left`: those of the left half.
template <class Bits>
HR_INLINE Layers<Bits> layers_of(uint8_t ctrlpf, Bits p0, Bits p1, Bits playfield, Bits ball, Bits left) {
  if (ctrlpf & 4) {  // the playfield comes first
    const Bits first = playfield | ball;
    return {p0 & ~first, p1 & ~(first | p0), first};
  }
  const Bits rest = playfield | ball;
  if (ctrlpf & 2) {  // score mode: the left half of the playfield belongs to player 0, the right half to player 1
    p0 |= playfield & left;
    p1 |= playfield & ~left;
  }
  return {p0, p1 & ~p0, rest & ~(p0 | p1)};
}

#ifdef HR_AVX512BW

// Paints pixels from <= x < to of `rows` rows, of which only a single one may be painted in part.
HR_INLINE void paint_layers(const Console& s, uint8_t* row, int32_t from, int32_t to, int32_t rows) {
  const Layers<LineBits> layers =
      layers_of(s.ctrlpf, load_mask(s.mask[kP0]) | load_mask(s.mask[kM0]), load_mask(s.mask[kP1]) | load_mask(s.mask[kM1]),
                load_mask(s.mask[kPlayfield]), load_mask(s.mask[kBall]), range_of_line(0, kScreenWidth / 2));
  const LineMask p0 = mask_of(layers.p0), p1 = mask_of(layers.p1), playfield = mask_of(layers.playfield);
  const __m512i background = _mm512_set1_epi8(static_cast<char>(s.color[3]));
  const auto pixels_of = [&](int32_t word) {
    __m512i pixels = _mm512_mask_mov_epi8(background, playfield.word[word], _mm512_set1_epi8(static_cast<char>(s.color[2])));
    pixels = _mm512_mask_mov_epi8(pixels, p1.word[word], _mm512_set1_epi8(static_cast<char>(s.color[1])));
    return _mm512_mask_mov_epi8(pixels, p0.word[word], _mm512_set1_epi8(static_cast<char>(s.color[0])));
  };
  if (HR_UNLIKELY(from == 0 && to == kScreenWidth)) {
    static_assert(kScreenWidth == 160);
    const __m512i first = pixels_of(0), second = pixels_of(1);
    const __m256i third = _mm512_castsi512_si256(pixels_of(2));
    for (; rows > 0; --rows, row += kScreenWidth) {
      _mm512_storeu_si512(row, first);
      _mm512_storeu_si512(row + 64, second);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(row + 128), third);
    }
    return;
  }
  const LineMask painted = mask_of(range_of_line(from, to));
  for (int32_t word = from >> 6; 64 * word < to; ++word)
    _mm512_mask_storeu_epi8(row + 64 * word, painted.word[word], pixels_of(word));
}

#else

// 8 bits to 8 bytes of 0x00 or 0xFF, the lowest bit first in memory (little endian).
HR_INLINE uint64_t bits_to_bytes(uint64_t bits) {
  const uint64_t spread = (bits & 0xFF) * 0x0101010101010101ull & 0x8040201008040201ull;
  return ((((spread & 0x7F7F7F7F7F7F7F7Full) + 0x7F7F7F7F7F7F7F7Full) | spread) >> 7 & 0x0101010101010101ull) * 0xFF;
}

HR_INLINE Layers<uint64_t> layers_of_word(const Console& s, int32_t word) {
  const LineMask* const mask = s.mask;
  return layers_of<uint64_t>(s.ctrlpf, mask[kP0].word[word] | mask[kM0].word[word], mask[kP1].word[word] | mask[kM1].word[word],
                             mask[kPlayfield].word[word], mask[kBall].word[word], word == 0 ? ~0ull : word == 1 ? 0xFFFF : 0);
}

// Paints pixels from <= x < to of `rows` rows, of which only a single one may be painted in part.
HR_INLINE void paint_layers(const Console& s, uint8_t* row, int32_t from, int32_t to, int32_t rows) {
  const uint64_t each = 0x0101010101010101ull;
  const uint64_t p0 = s.color[0] * each, p1 = s.color[1] * each, playfield = s.color[2] * each,
                 background = s.color[3] * each;
  Layers<uint64_t> layers = {};
  for (int32_t x = from & ~7, word = -1; x < to; x += 8) {
    if (x >> 6 != word) layers = layers_of_word(s, word = x >> 6);
    const int32_t shift = x & 63;
    const uint64_t in_p0 = bits_to_bytes(layers.p0 >> shift), in_p1 = bits_to_bytes(layers.p1 >> shift);
    const uint64_t in_playfield = bits_to_bytes(layers.playfield >> shift);
    const uint64_t pixels = (in_p0 & p0) | (in_p1 & p1) | (in_playfield & playfield) |
                            (~(in_p0 | in_p1 | in_playfield) & background);
    if (x >= from && x + 8 <= to) {
      copy_bytes(row + x, &pixels, 8);
    } else {
      for (int32_t i = x < from ? from - x : 0; i < 8 && x + i < to; ++i)
        row[x + i] = static_cast<uint8_t>(pixels >> (8 * i));
    }
  }
  for (; rows > 1; --rows, row += kScreenWidth) copy_bytes(row + kScreenWidth, row, kScreenWidth);
}

#endif

HR_INLINE void paint(Console& s, uint8_t* row, int32_t from, int32_t to, int32_t rows) {
  if (HR_UNLIKELY(s.vblank & 2)) {
    for (; rows > 0; --rows, row += kScreenWidth) clear_bytes(row + from, static_cast<size_t>(to - from));
  } else {
    refresh_masks(s);
    paint_layers(s, row, from, to, rows);
  }
}

}  // namespace headrace::atari
