// Pixels: the colours of a stretch of a scanline, from the masks of the objects.
#pragma once

#include "line_mask.hpp"
#include "platform.hpp"
#include "state.hpp"

namespace headrace::atari {

// Where each colour shows within 64 pixels. The masks are disjoint; what is in none is background.
struct Layers {
  uint64_t p0, p1, playfield;
};

HR_INLINE Layers layers_of(const Console& s, int32_t word) {
  const uint64_t p0 = s.mask[kP0].word[word] | s.mask[kM0].word[word];
  const uint64_t p1 = s.mask[kP1].word[word] | s.mask[kM1].word[word];
  const uint64_t playfield = s.mask[kPlayfield].word[word], ball = s.mask[kBall].word[word];
  if (s.ctrlpf & 4) {  // the playfield comes first
    const uint64_t first = playfield | ball;
    return {p0 & ~first, p1 & ~(first | p0), first};
  }
  // Score mode: the left half of the playfield belongs to player 0, the right half to player 1.
  const uint64_t left = word == 0 ? ~0ull : word == 1 ? 0xFFFF : 0;
  const uint64_t scored = s.ctrlpf & 2 ? playfield : 0;
  const uint64_t of_p0 = p0 | (scored & left), of_p1 = (p1 | (scored & ~left)) & ~of_p0;
  return {of_p0, of_p1, (playfield | ball) & ~(of_p0 | of_p1)};
}

#ifdef HR_AVX512BW

// Paints pixels from <= x < to of the row.
HR_INLINE void paint_layers(const Console& s, uint8_t* row, int32_t from, int32_t to) {
  const __m512i background = _mm512_set1_epi8(static_cast<char>(s.color[3]));
  const __m512i p0 = _mm512_set1_epi8(static_cast<char>(s.color[0])),
                p1 = _mm512_set1_epi8(static_cast<char>(s.color[1])),
                playfield = _mm512_set1_epi8(static_cast<char>(s.color[2]));
  for (int32_t word = from >> 6; 64 * word < to; ++word) {
    const Layers layers = layers_of(s, word);
    __m512i pixels = _mm512_mask_mov_epi8(background, layers.playfield, playfield);
    pixels = _mm512_mask_mov_epi8(pixels, layers.p1, p1);
    pixels = _mm512_mask_mov_epi8(pixels, layers.p0, p0);
    _mm512_mask_storeu_epi8(row + 64 * word, range_of_word(word, from, to), pixels);
  }
}

#else

// 8 bits to 8 bytes of 0x00 or 0xFF, the lowest bit first in memory (little endian).
HR_INLINE uint64_t bits_to_bytes(uint64_t bits) {
  const uint64_t spread = (bits & 0xFF) * 0x0101010101010101ull & 0x8040201008040201ull;
  return ((((spread & 0x7F7F7F7F7F7F7F7Full) + 0x7F7F7F7F7F7F7F7Full) | spread) >> 7 & 0x0101010101010101ull) * 0xFF;
}

// Paints pixels from <= x < to of the row.
HR_INLINE void paint_layers(const Console& s, uint8_t* row, int32_t from, int32_t to) {
  const uint64_t each = 0x0101010101010101ull;
  const uint64_t p0 = s.color[0] * each, p1 = s.color[1] * each, playfield = s.color[2] * each,
                 background = s.color[3] * each;
  Layers layers = {};
  for (int32_t x = from & ~7, word = -1; x < to; x += 8) {
    if (x >> 6 != word) layers = layers_of(s, word = x >> 6);
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
}

#endif

HR_INLINE void paint(Console& s, uint8_t* row, int32_t from, int32_t to) {
  if (s.vblank & 2) {
    for (int32_t x = from; x < to; ++x) row[x] = 0;
  } else {
    refresh_masks(s, s.solid);
    paint_layers(s, row, from, to);
  }
}

}  // namespace headrace::atari
