// The macros that make the handlers of the decoded interpreter. run_loop.hpp includes this header and undefines them at its end
// (loop_macros_end.hpp); they use the local variables of run_loop. cuda/blocks.hpp does the same for compiled blocks.

#if defined(__GNUC__) && !defined(HR_PORTABLE)
#define HR_COMPUTED_GOTO 1
#endif

#ifdef HR_COMPUTED_GOTO
#define HR_CASE(name) name##_:
#define HR_DISPATCH             \
  {                             \
    code = *ip;                 \
    goto* labels[code & 0xFF];  \
  }
#else
#define HR_CASE(name) case k##name:
#define HR_DISPATCH goto dispatch;
#endif
// Ends an instruction: goes on behind its `length` bytes and `cycles` cycles later.
#define HR_NEXT(length, cycles) \
  {                             \
    ip += length;               \
    clock += kCount + (cycles); \
    HR_DISPATCH                 \
  }

#define HR_LOAD(reg, value) reg = nz = (value)
#define HR_ORA(m) HR_LOAD(a, a | (m))
#define HR_AND(m) HR_LOAD(a, a & (m))
#define HR_EOR(m) HR_LOAD(a, a ^ (m))
#define HR_LDA(m) HR_LOAD(a, m)
#define HR_CMP(m) HR_COMPARE(a, m)
#define HR_COMPARE(reg, m)     \
  {                            \
    const uint32_t with = m;   \
    carry = reg >= with;       \
    nz = (reg - with) & 0xFF;  \
  }
#define HR_ADC(m)                                            \
  {                                                          \
    const uint32_t with = m;                                 \
    if (HR_UNLIKELY(decimal)) goto step;                     \
    const uint32_t sum = a + with + carry;                   \
    overflow = (~(a ^ with) & (a ^ sum)) >> 7 & 1;           \
    carry = sum >> 8;                                        \
    a = nz = sum & 0xFF;                                     \
  }
#define HR_SBC(m)                                            \
  {                                                          \
    const uint32_t with = m;                                 \
    if (HR_UNLIKELY(decimal)) goto step;                     \
    const uint32_t difference = a + (with ^ 0xFF) + carry;   \
    overflow = ((a ^ with) & (a ^ difference)) >> 7 & 1;     \
    carry = difference >> 8;                                 \
    a = nz = difference & 0xFF;                              \
  }
#define HR_RAM(index) s.ram[index]
#define HR_ROM(address) rom[RomView<M>::offset(s, address)]

// clang-format off
#define HR_IMM(name, use) HR_CASE(name) { use(HR_OPERAND); HR_NEXT(2, 2) }
#define HR_FROM_RAM(name, use) HR_CASE(name) { use(HR_RAM(HR_OPERAND)); HR_NEXT(2, 3) }
#define HR_INDEXED_RAM(name, index, use)                      \
  HR_CASE(name) {                                             \
    const uint32_t address = (HR_OPERAND + index) & 0xFF;     \
    const uint32_t m = HR_LIKELY(address & 0x80)              \
                           ? HR_RAM(address & 0x7F)           \
                           : read_port(s, frame, address, HR_OPERAND, HR_CYCLE + 4); \
    use(m);                                                   \
    HR_NEXT(2, 4)                                             \
  }
// Declares m and reads a byte from any address into it, `cycles` after the instruction began. `bus`: the byte read before it.
#define HR_MEMORY(address, bus, cycles)                                                       \
  uint32_t m;                                                                                 \
  if (HR_LIKELY(RomView<M>::plain(address))) m = HR_ROM(address);                             \
  else if (is_ram(address)) m = HR_RAM((address) & 0x7F);                                     \
  else if (!((address) & 0x1000)) m = read_port(s, frame, address, bus, HR_CYCLE + (cycles)); \
  else goto step;
#define HR_FROM_MEMORY(name, use)                             \
  HR_CASE(name) {                                             \
    HR_MEMORY(HR_OPERAND, HR_OPERAND >> 8, 4)                 \
    use(m);                                                   \
    HR_NEXT(3, 4)                                             \
  }
#define HR_INDEXED_MEMORY(name, index, use)                              \
  HR_CASE(name) {                                                        \
    const uint32_t address = HR_OPERAND + index;                         \
    const uint32_t cycles = 4 + (((HR_OPERAND & 0xFF) + index) >> 8);    \
    HR_MEMORY(address, HR_OPERAND >> 8, cycles)                          \
    use(m);                                                              \
    HR_NEXT(3, cycles)                                                   \
  }
#define HR_INDIRECT_Y(name, use)                                                \
  HR_CASE(name) {                                                               \
    const uint32_t low = HR_RAM(HR_OPERAND) + y;                                \
    const uint32_t pointer_high = HR_RAM(HR_OPERAND + 1);                       \
    const uint32_t address = (pointer_high << 8) + low;                         \
    HR_MEMORY(address, pointer_high, 5 + (low >> 8))                            \
    use(m);                                                                     \
    HR_NEXT(2, 5 + (low >> 8))                                                  \
  }
#define HR_INDIRECT_X(name, use)                                                \
  HR_CASE(name) {                                                               \
    const uint32_t pointer = (HR_OPERAND + x) & 0xFF;                           \
    if (HR_UNLIKELY(pointer < 0x80 || pointer == 0xFF)) goto step;              \
    const uint32_t pointer_high = HR_RAM(pointer - 0x7F);                       \
    const uint32_t address = (pointer_high << 8) + HR_RAM(pointer - 0x80);      \
    HR_MEMORY(address, pointer_high, 6)                                         \
    use(m);                                                                     \
    HR_NEXT(2, 6)                                                               \
  }
#define HR_FROM_TIA(name, use)                                                  \
  HR_CASE(name) {                                                               \
    const uint32_t m = read_port(s, frame, HR_OPERAND, HR_OPERAND, HR_CYCLE + 3); \
    use(m);                                                                     \
    HR_NEXT(2, 3)                                                               \
  }
#define HR_ALU_FORMS(name, use)                                                                            \
  HR_IMM(name##Imm, use) HR_FROM_RAM(name##Ram, use) HR_INDEXED_RAM(name##ZpX, x, use)                     \
  HR_FROM_MEMORY(name##Abs, use) HR_INDEXED_MEMORY(name##AbsX, x, use) HR_INDEXED_MEMORY(name##AbsY, y, use)  \
  HR_INDIRECT_Y(name##IndY, use) HR_INDIRECT_X(name##IndX, use) HR_FROM_TIA(name##Tia, use)
#define HR_LDX(m) HR_LOAD(x, m)
#define HR_LDY(m) HR_LOAD(y, m)
#define HR_CPX(m) HR_COMPARE(x, m)
#define HR_CPY(m) HR_COMPARE(y, m)
#define HR_BIT(m) { const uint32_t with = m; nz = ((a & with) != 0) | (with & 0x80) << 8; overflow = with >> 6 & 1; }

#define HR_FROM_TIMER(name, reg)                                                        \
  HR_CASE(name) {                                                                       \
    const uint64_t polls = polls_to_skip(s, HR_EXTRA, HR_CYCLE + 4);                    \
    const uint64_t skipped = polls * (2 * kCount + kPollingCycles);                     \
    if (HR_LIKELY(clock + skipped < watched)) clock += skipped;                         \
    reg = nz = read_timer(s, HR_CYCLE + 4);                                             \
    HR_NEXT(3, 4)                                                                       \
  }
#define HR_TO_RAM(name, reg) HR_CASE(name) { HR_RAM(HR_OPERAND) = static_cast<uint8_t>(reg); HR_NEXT(2, 3) }
#define HR_TO_TIA(name, source, length, cycles)                                         \
  HR_CASE(name) {                                                                       \
    value = source;                                                                     \
    reg = HR_OPERAND;                                                                   \
    ip += length;                                                                       \
    clock += kCount + cycles;                                                           \
    goto store_tia;                                                                     \
  }
// For the registers that are written most often.
#define HR_TO_REGISTER(name, source, target)                                            \
  HR_CASE(name) {                                                                       \
    value = source;                                                                     \
    reg = HR_OPERAND;                                                                   \
    ip += 2;                                                                            \
    clock += kCount + 3;                                                                \
    goto target;                                                                        \
  }
#define HR_STORE_FORMS(name, source)                                                    \
  HR_TO_RAM(name##Ram, source) HR_TO_TIA(name##Tia, source, 2, 3) HR_TO_TIA(name##TiaAbs, source, 3, 4) \
  HR_TO_REGISTER(name##Color, source, store_color) HR_TO_REGISTER(name##Grp, source, store_grp) \
  HR_TO_REGISTER(name##Pf, source, store_playfield)
#define HR_TO_INDEXED(name, source, index)                                              \
  HR_CASE(name) {                                                                       \
    const uint32_t address = (HR_OPERAND + index) & 0xFF;                               \
    if (HR_LIKELY(address & 0x80)) {                                                    \
      HR_RAM(address & 0x7F) = static_cast<uint8_t>(source);                            \
      HR_NEXT(2, 4)                                                                     \
    }                                                                                   \
    reg = address & 63;                                                                 \
    if (is_special_register(reg)) goto step;                                            \
    value = source;                                                                     \
    ip += 2;                                                                            \
    clock += kCount + 4;                                                                \
    goto store_tia;                                                                     \
  }
#define HR_TO_MEMORY(name, source, address_expression, length, cycles)                  \
  HR_CASE(name) {                                                                       \
    const uint32_t address = address_expression;                                        \
    if (HR_UNLIKELY(!is_ram(address))) goto step;                                       \
    HR_RAM(address & 0x7F) = static_cast<uint8_t>(source);                              \
    HR_NEXT(length, cycles)                                                             \
  }
#define HR_MODIFY_RAM(name, modify)                                                     \
  HR_CASE(name) {                                                                       \
    uint32_t m = HR_RAM(HR_OPERAND);                                                    \
    modify;                                                                             \
    nz = m;                                                                             \
    HR_RAM(HR_OPERAND) = static_cast<uint8_t>(m);                                       \
    HR_NEXT(2, 5)                                                                       \
  }
#define HR_MODIFY_INDEXED(name, modify)                                                 \
  HR_CASE(name) {                                                                       \
    const uint32_t address = HR_OPERAND + x;                                            \
    if (HR_UNLIKELY(!(address & 0x80))) goto step;                                      \
    uint32_t m = HR_RAM(address & 0x7F);                                                \
    modify;                                                                             \
    nz = m;                                                                             \
    HR_RAM(address & 0x7F) = static_cast<uint8_t>(m);                                   \
    HR_NEXT(2, 6)                                                                       \
  }
#define HR_ASL(m) { carry = (m) >> 7; m = ((m) << 1) & 0xFF; }
#define HR_LSR(m) { carry = (m) & 1; m = (m) >> 1; }
#define HR_ROL(m) { const uint32_t in = carry; carry = (m) >> 7; m = ((m) << 1 | in) & 0xFF; }
#define HR_ROR(m) { const uint32_t in = carry << 7; carry = (m) & 1; m = (m) >> 1 | in; }
#define HR_BRANCH(name, condition)                                                      \
  HR_CASE(name) {                                                                       \
    if (condition) {                                                                    \
      ip += 2 + (static_cast<int32_t>(code) >> 16);                                     \
      clock += kCount + 2 + HR_EXTRA;                                                   \
      if (HR_UNLIKELY(clock >= watched)) goto step;                                     \
      HR_DISPATCH                                                                       \
    }                                                                                   \
    HR_NEXT(2, 2)                                                                       \
  }
#define HR_IMPLIED(name, cycles, body) HR_CASE(name) { body; HR_NEXT(1, cycles) }
#define HR_OPERAND (code >> 16)
#define HR_EXTRA (code >> 8 & 0xFF)
#define HR_PC (high + static_cast<uint32_t>(ip - window))
#define HR_GO_TO(address)                                                               \
  {                                                                                     \
    const uint32_t target_address = address;                                            \
    high = target_address & (0x10000 - RomView<M>::kWindow);                            \
    window = decoded + RomView<M>::offset(s, high);                                     \
    ip = window + (target_address & (RomView<M>::kWindow - 1));                         \
  }
#define HR_CYCLE static_cast<int32_t>(clock & (kCount - 1))
// clang-format on

#define HR_STORE_REGISTERS                     \
  {                                            \
    s.pc = static_cast<uint16_t>(HR_PC);       \
    s.a = static_cast<uint8_t>(a);             \
    s.x = static_cast<uint8_t>(x);             \
    s.y = static_cast<uint8_t>(y);             \
    s.sp = static_cast<uint8_t>(sp);           \
    s.nz = static_cast<uint16_t>(nz);          \
    s.carry = static_cast<uint8_t>(carry);     \
    s.overflow = static_cast<uint8_t>(overflow); \
    s.decimal = static_cast<uint8_t>(decimal); \
    s.cycle = HR_CYCLE;                        \
  }
