// The state of one console, and the input of one frame, as plain data.
#pragma once

namespace headrace::atari {

// Objects of the TIA in the order of their bits in a set of objects.
enum Object : uint8_t { kP0, kM0, kP1, kM1, kBall, kPlayfield, kObjects };

// 160 pixels of a line: pixel x is bit x & 63 of word x / 64. The last word pads to the width of a vector register.
struct alignas(32) LineMask {
  uint64_t word[4];
};

// The controls, as the pins of the console see them during one frame.
struct Input {
  // Joystick directions, a pressed one is 0. Left port: bit 7 right, 6 left, 5 down, 4 up; right port: bits 3..0 alike.
  // A paddle's button is its port's "right" (first paddle) or "left" (second paddle).
  uint8_t swcha = 0xFF;
  // Console switches: bit 0 RESET and 1 SELECT (0 = pressed), 3 colour, 6 and 7 left and right difficulty (1 = A).
  uint8_t swchb = 0x3F;
  bool fire[2] = {false, false};  // joystick buttons of the left and the right port
  // Resistance in ohms at INPT0..3: the paddles. kNoPaddle for anything else.
  static constexpr int32_t kNoPaddle = 0x7FFFFFFF;
  int32_t paddle[4] = {kNoPaddle, kNoPaddle, kNoPaddle, kNoPaddle};
};

struct DpcState {
  uint16_t counter[8];
  uint8_t top[8], bottom[8], flag[8];
  bool music[3];
  uint8_t random;
  int32_t clocked_at;  // cycle up to which the music oscillator has run
  double fraction;     // of an oscillator clock left over
};

// All times are 6507 cycles (or colour clocks, 3 to the cycle, where named so) counted from the start of the
// scanline in which the current frame began; they are shifted when the next frame begins.
struct Console {
  // 6507
  uint16_t pc;
  uint8_t a, x, y, sp;
  // The N and Z flags: N is nz & 0x8080, Z is (nz & 0xFF) == 0. Most instructions simply store their result here.
  uint16_t nz;
  uint8_t carry, overflow, decimal, interrupt_disable;  // 0 or 1
  bool jammed;
  int32_t cycle;

  // RIOT
  uint8_t ram[128];
  uint8_t timer, timer_shift, swacnt;
  bool timer_read_after_expiry;
  uint32_t timer_set_at, timer_first_read_at;

  // Cartridge
  uint16_t bank;        // offset of the selected 4K bank in the image
  uint8_t slice[4];     // E0: the 1K slice in each segment
  union {
    uint8_t superchip[128];
    DpcState dpc;
  };

  // TIA: frame
  int32_t frame_began_at;   // cycle of the frame's first instruction, 0..75
  int32_t last_frame_lines;
  bool frame_complete;      // the last run_frame reached the end of the frame
  bool grayed;              // the rows below the point where a partial frame was interrupted were grayed already
  bool rows_missing;        // some row of the frame that ended last was not drawn
  uint8_t parity;           // which of the two frame buffers is drawn into
  uint8_t color_loss;       // 1 while PAL colour loss sets bit 0 of all colours
  int32_t vsync_end_clock;  // from here on clearing VSYNC ends the frame
  int32_t drawn_to_clock;   // how far the picture has been advanced
  int32_t idle_until_clock;  // from drawn_to_clock to here there is nothing to draw: the beam is in the horizontal blank
  int32_t line_start_clock;  // start of a line on display, at most the one of drawn_to_clock
  int32_t last_access_clock;  // of the last access to the TIA: to here the picture must be advanced before the frame ends
  int32_t hmove_clock;
  int32_t dump_released_at;

  // TIA: registers
  uint8_t vsync, vblank, ctrlpf;
  uint8_t nusiz[2], color[4];  // P0, P1, playfield, background
  uint8_t grp[2], grp_old[2], enam[2], resmp[2], vdelp[2], refp[2];
  uint8_t enabl, enabl_old, vdelbl;
  // By Object; padded to a whole word. Motion is what a HMOVE in time adds to the position, plus 8.
  uint8_t position[8], motion[8];
  uint32_t playfield;              // 20 bits, bit 0 leftmost
  uint8_t playfield_reflected;     // the latched reflection bit
  bool first_copy_hidden[2];
  bool stars, star_hidden;
  uint8_t star_counter, star_width;
  int32_t hmove_blank_clock;  // the first 8 pixels of lines before this clock are blanked by a HMOVE
  uint16_t collisions;        // register CXn is bits 2n+1 and 2n

  // TIA: derived from the registers above
  uint16_t pending;        // collisions that can still be latched: both objects have pixels, and the latch is clear
  uint8_t shown_grp[2], shown_enabl;  // the old or the new register, as VDELP and VDELBL select
  uint8_t moving;          // set of objects that a HMOVE moves
  uint8_t solid;           // set of objects with at least one pixel
  uint8_t stale;           // set of objects whose mask is out of date
  bool changes_at_line_end;  // end_line has something to do
  uint8_t tested_from, tested_to;  // for these pixels of the present masks collisions are latched already
  LineMask mask[kObjects];  // empty for objects without pixels
};

inline constexpr int32_t kNever = 0x7FFFFFFF;

}  // namespace headrace::atari
