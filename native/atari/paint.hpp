// Pixels: the colours of a stretch of a scanline, from the masks of the objects.
#pragma once

#include "line_mask.hpp"
#include "platform.hpp"
#include "state.hpp"

namespace headrace::atari {

// Where each colour shows. The masks are disjoint; what is in none is background.
struct Layers {
  LineMask p0, p1, playfield;
};

HR_INLINE Layers layers_of(Console& s) {
  refresh_masks(s, s.solid);
  LineMask shown[kObjects];
  for (int object = 0; object < kObjects; ++object) {
    const uint64_t on = s.solid >> object & 1 ? ~0ull : 0;
    for (int i = 0; i < 4; ++i) shown[object].word[i] = s.mask[object].word[i] & on;
  }
  Layers layers;
  for (int i = 0; i < 4; ++i) {
    const uint64_t p0 = shown[kP0].word[i] | shown[kM0].word[i], p1 = shown[kP1].word[i] | shown[kM1].word[i];
    const uint64_t playfield = shown[kPlayfield].word[i], ball = shown[kBall].word[i];
    if (s.ctrlpf & 4) {  // the playfield comes first
      layers.playfield.word[i] = playfield | ball;
      layers.p0.word[i] = p0 & ~(playfield | ball);
      layers.p1.word[i] = p1 & ~(playfield | ball | p0);
    } else {
      // Score mode: the left half of the playfield belongs to player 0, the right half to player 1.
      const uint64_t left = i == 0 ? ~0ull : i == 1 ? 0xFFFF : 0;
      const uint64_t of_p0 = s.ctrlpf & 2 ? playfield & left : 0;
      const uint64_t of_p1 = s.ctrlpf & 2 ? playfield & ~left : 0;
      layers.p0.word[i] = p0 | of_p0;
      layers.p1.word[i] = (p1 | of_p1) & ~layers.p0.word[i];
      layers.playfield.word[i] = (playfield | ball) & ~(layers.p0.word[i] | layers.p1.word[i]);
    }
  }
  return layers;
}

#if defined(__AVX512BW__) && !defined(__CUDACC__)

// Paints pixels from <= x < to of the row.
HR_INLINE void paint_layers(const Console& s, const Layers& layers, uint8_t* row, int32_t from, int32_t to) {
  const LineMask range = range_mask(from, to);
  const __m512i background = _mm512_set1_epi8(static_cast<char>(s.color[3]));
  const __m512i p0 = _mm512_set1_epi8(static_cast<char>(s.color[0])),
                p1 = _mm512_set1_epi8(static_cast<char>(s.color[1])),
                playfield = _mm512_set1_epi8(static_cast<char>(s.color[2]));
  for (int i = 0; i < 3; ++i) {
    __m512i pixels = _mm512_mask_mov_epi8(background, layers.playfield.word[i], playfield);
    pixels = _mm512_mask_mov_epi8(pixels, layers.p1.word[i], p1);
    pixels = _mm512_mask_mov_epi8(pixels, layers.p0.word[i], p0);
    _mm512_mask_storeu_epi8(row + 64 * i, range.word[i], pixels);
  }
}

#else

// 8 bits to 8 bytes of 0x00 or 0xFF, the lowest bit first in memory (little endian).
HR_INLINE uint64_t bits_to_bytes(uint64_t bits) {
  const uint64_t spread = (bits & 0xFF) * 0x0101010101010101ull & 0x8040201008040201ull;
  return ((((spread & 0x7F7F7F7F7F7F7F7Full) + 0x7F7F7F7F7F7F7F7Full) | spread) >> 7 & 0x0101010101010101ull) * 0xFF;
}

// Paints pixels from <= x < to of the row.
HR_INLINE void paint_layers(const Console& s, const Layers& layers, uint8_t* row, int32_t from, int32_t to) {
  const uint64_t each = 0x0101010101010101ull;
  const uint64_t p0 = s.color[0] * each, p1 = s.color[1] * each, playfield = s.color[2] * each,
                 background = s.color[3] * each;
  for (int32_t x = from & ~7; x < to; x += 8) {
    const int32_t word = x >> 6, shift = x & 63;
    const uint64_t in_p0 = bits_to_bytes(layers.p0.word[word] >> shift);
    const uint64_t in_p1 = bits_to_bytes(layers.p1.word[word] >> shift);
    const uint64_t in_playfield = bits_to_bytes(layers.playfield.word[word] >> shift);
    const uint64_t pixels = (in_p0 & p0) | (in_p1 & p1) | (in_playfield & playfield) |
                            (~(in_p0 | in_p1 | in_playfield) & background);
    if (x >= from && x + 8 <= to) {
      __builtin_memcpy(row + x, &pixels, 8);
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
    paint_layers(s, layers_of(s), row, from, to);
  }
}

}  // namespace headrace::atari
