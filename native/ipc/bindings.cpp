// headrace._native.ipc: shared memory and what processes exchange through it. The contracts are in the headers;
// headrace.shm adds pickling to child processes.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <bit>
#include <optional>

#include "ipc/versioned_buffer.h"
#include "ipc/queue.h"
#include "ipc/segment.h"
#include "ipc/slots.h"
#include "ipc/words.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace headrace::ipc {
namespace {

using Ints = nb::ndarray<int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstInts = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Bytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using ConstBytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Timeout = std::optional<double>;

struct Closed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

Deadline deadline(Timeout timeout) { return timeout ? Deadline::after(*timeout) : Deadline::never(); }
bool may_wait(Timeout timeout) { return !timeout || *timeout > 0; }

// Lets Python's signal handlers run (KeyboardInterrupt) while this thread waits without the GIL.
void check_signals() {
  nb::gil_scoped_acquire gil;
  if (PyErr_CheckSignals() != 0) throw nb::python_error();
}

// A part of a segment that holds one T; the segment lives as long as this.
template <class T>
class Part {
 public:
  Part(nb::object segment, size_t offset, size_t nbytes)
      : segment_(std::move(segment)),
        offset_(offset),
        self_(reinterpret_cast<T*>(nb::cast<Segment&>(segment_).at(offset, nbytes))) {}
  T* operator->() const { return self_; }
  nb::object segment() const { return segment_; }
  size_t offset() const { return offset_; }

 private:
  nb::object segment_;
  size_t offset_;
  T* self_;
};

// Makes a new T at `offset` where `size` is given; else takes the one that another process made there.
template <class T, class Size>
class Shared {
 public:
  Shared(nb::object segment, size_t offset, std::optional<Size> size) : self_(segment, offset, sizeof(T)) {
    if (!size) {
      if (!self_->initialised()) throw std::invalid_argument("nothing of this kind at that offset of the segment");
      return;
    }
    self_ = Part<T>(segment, offset, T::bytes(*size));
    std::memset(static_cast<void*>(self_.operator->()), 0, T::bytes(*size));
    self_->init(*size);
  }
  T* operator->() const { return self_.operator->(); }
  nb::object segment() const { return self_.segment(); }
  size_t offset() const { return self_.offset(); }

 private:
  Part<T> self_;
};

using PyQueue = Shared<Queue, uint32_t>;
using PyVersionedBuffer = Shared<VersionedBuffer, uint64_t>;
using PySlots = Shared<Slots, uint32_t>;

uint32_t round_capacity(int64_t capacity) {
  if (capacity < 1 || capacity > (int64_t{1} << 30)) throw std::invalid_argument("capacity must be 1 ... 2**30");
  return std::bit_ceil(static_cast<uint32_t>(capacity));
}

size_t queue_put(PyQueue& q, const int32_t* values, size_t n, Timeout timeout) {
  if (q->closed()) throw Closed("the queue is closed");
  size_t done = q->try_put(values, n);
  if (done < n && may_wait(timeout)) {
    nb::gil_scoped_release nogil;
    done += q->put(values + done, n - done, deadline(timeout), check_signals);
  }
  if (done < n && q->closed()) throw Closed("the queue was closed with " + std::to_string(n - done) + " values not put");
  return done;
}

size_t queue_get(PyQueue& q, int32_t* out, size_t n, size_t at_least, Timeout timeout, double patience) {
  if (at_least <= 1 || patience <= 0 || q->size() >= at_least || !may_wait(timeout))
    if (const size_t done = q->try_get(out, n)) return done;
  size_t done = 0;
  if (may_wait(timeout)) {
    nb::gil_scoped_release nogil;
    done = q->get(out, n, at_least, deadline(timeout), patience, check_signals);
  }
  // Closed is looked at before the last try: nothing is put after it.
  if (done == 0 && q->closed() && (done = q->try_get(out, n)) == 0) throw Closed("the queue is closed and empty");
  return done;
}

class PyWords {
 public:
  PyWords(nb::object segment, size_t offset, uint32_t n)
      : n_(n), self_(std::move(segment), offset, sizeof(Word) * n) {}
  uint32_t size() const { return n_; }
  Word& at(int64_t i) const {
    if (i < 0 || i >= n_) throw nb::index_error(("word " + std::to_string(i) + " of " + std::to_string(n_)).c_str());
    return self_.operator->()[i];
  }
  template <class Ready>
  uint32_t wait(int64_t i, Timeout timeout, Ready ready) const {
    Word& word = at(i);
    const uint32_t seen = word.load();
    if (ready(seen) || !may_wait(timeout)) return seen;
    nb::gil_scoped_release nogil;
    return word.wait(ready, deadline(timeout), check_signals);
  }
  nb::object segment() const { return self_.segment(); }
  size_t offset() const { return self_.offset(); }

 private:
  uint32_t n_;
  Part<Word> self_;
};

const std::byte* payload(PyVersionedBuffer& buffer, size_t given, const uint8_t* data) {
  if (given != buffer->nbytes())
    throw std::invalid_argument("the buffer holds " + std::to_string(buffer->nbytes()) + " bytes, the array " +
                                std::to_string(given));
  return reinterpret_cast<const std::byte*>(data);
}

uint32_t checked_owner(int64_t owner) {
  if (owner < 1 || owner > 0xffff) throw std::invalid_argument("an owner is 1 ... 65535; 0 means nobody");
  return static_cast<uint32_t>(owner);
}

uint32_t checked_slot(PySlots& slots, int64_t slot) {
  if (slot < 0 || slot >= slots->size()) throw nb::index_error("no such slot");
  return static_cast<uint32_t>(slot);
}

// memoryview(segment), np.frombuffer and torch.frombuffer; each keeps the segment alive.
int segment_buffer(PyObject* self, Py_buffer* view, int flags) {
  Segment* segment = nb::inst_ptr<Segment>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, segment->data(), static_cast<Py_ssize_t>(segment->nbytes()), 0, flags);
}
PyType_Slot segment_slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(segment_buffer)}, {0, nullptr}};

void bind_segment(nb::module_& m) {
  nb::class_<Segment>(m, "Segment", nb::type_slots(segment_slots),
                      "Anonymous shared memory (memfd), zero at first; the kernel frees it with its last user.")
      .def(nb::init<size_t>(), "nbytes"_a)
      .def("__init__", [](Segment* self, int fd) { new (self) Segment(Segment::FromFd{fd}); }, nb::kw_only(), "fd"_a,
           "The segment behind a descriptor, which it takes over.")
      .def_prop_ro("nbytes", &Segment::nbytes)
      .def_prop_ro("fd", &Segment::fd)
      .def_prop_ro("buffer",
                   [](nb::handle self) { return nb::steal<nb::object>(PyMemoryView_FromObject(self.ptr())); },
                   nb::sig("def buffer(self) -> memoryview"), "The bytes; the view keeps the segment alive.")
      .def("prefault", &Segment::prefault, nb::call_guard<nb::gil_scoped_release>(),
           "Gives every page its memory now. Raises OSError where there is not enough.");
}

void bind_queue(nb::module_& m) {
  nb::exception<Closed>(m, "Closed", PyExc_EOFError);
  nb::class_<PyQueue>(m, "Queue", "A bounded queue of int32 for any number of producers and consumers.")
      .def("__init__",
           [](PyQueue* self, nb::object segment, size_t offset, std::optional<int64_t> capacity) {
             std::optional<uint32_t> rounded;
             if (capacity) rounded = round_capacity(*capacity);
             new (self) PyQueue(std::move(segment), offset, rounded);
           },
           "segment"_a, "offset"_a, "capacity"_a.none())
      .def_static("bytes", [](int64_t capacity) { return Queue::bytes(round_capacity(capacity)); }, "capacity"_a)
      .def_prop_ro("segment", &PyQueue::segment)
      .def_prop_ro("offset", &PyQueue::offset)
      .def_prop_ro("capacity", [](PyQueue& q) { return q->capacity(); })
      .def_prop_ro("closed", [](PyQueue& q) { return q->closed(); })
      .def("qsize", [](PyQueue& q) { return q->size(); }, "Number of values in the queue; an estimate while others work.")
      .def("close", [](PyQueue& q) { q->close(); }, "End of the stream: no more puts; gets until nothing is left.")
      .def("put",
           [](PyQueue& q, int32_t value, Timeout timeout) { return queue_put(q, &value, 1, timeout) == 1; },
           "value"_a, "timeout"_a = nb::none(),
           "Puts one int32, waiting for room up to `timeout` seconds (None: for ever). False on timeout. Raises Closed.")
      .def("put_many",
           [](PyQueue& q, ConstInts values, Timeout timeout) {
             return queue_put(q, values.data(), values.size(), timeout);
           },
           "values"_a, "timeout"_a = nb::none(),
           "Puts int32[n] in order; returns how many were put by the timeout. Raises Closed.")
      .def("get",
           [](PyQueue& q, Timeout timeout) -> std::optional<int32_t> {
             int32_t value;
             if (queue_get(q, &value, 1, 1, timeout, 0) == 0) return std::nullopt;
             return value;
           },
           "timeout"_a = nb::none(), "The next int32; None on timeout. Raises Closed at the end of the stream.")
      .def("get_many",
           [](PyQueue& q, Ints out, size_t min_items, Timeout timeout, double patience) {
             return out.size() ? queue_get(q, out.data(), out.size(), min_items, timeout, patience) : 0;
           },
           "out"_a, "min_items"_a = 1, "timeout"_a = nb::none(), "patience"_a = 0.0,
           "Takes up to len(out) values into out (int32[n]) and returns their number, 0 on timeout. Waits for the first\n"
           "up to `timeout` seconds (None: for ever), then for `min_items` in all up to `patience` seconds more. Values\n"
           "stay in the queue until then. Raises Closed at the end of the stream.");
}

void bind_words(nb::module_& m) {
  nb::class_<PyWords>(m, "Words", "uint32 words in shared memory; every change wakes those who wait for it.")
      .def(nb::init<nb::object, size_t, uint32_t>(), "segment"_a, "offset"_a, "n"_a)
      .def_static("bytes", [](uint32_t n) { return sizeof(Word) * n; }, "n"_a)
      .def_prop_ro("segment", &PyWords::segment)
      .def_prop_ro("offset", &PyWords::offset)
      .def("__len__", &PyWords::size)
      .def("load", [](PyWords& w, int64_t i) { return w.at(i).load(); }, "i"_a)
      .def("store", [](PyWords& w, int64_t i, uint32_t value) { w.at(i).store(value); }, "i"_a, "value"_a)
      .def("add", [](PyWords& w, int64_t i, int64_t k) { return w.at(i).add(static_cast<uint32_t>(k)); }, "i"_a,
           "k"_a = 1, "Adds k modulo 2**32; returns the new value.")
      .def("fetch_or", [](PyWords& w, int64_t i, uint32_t bits) { return w.at(i).fetch_or(bits); }, "i"_a, "bits"_a,
           "Sets bits; returns the value before.")
      .def("fetch_and", [](PyWords& w, int64_t i, uint32_t mask) { return w.at(i).fetch_and(mask); }, "i"_a, "mask"_a,
           "Keeps the bits of the mask; returns the value before.")
      .def("take", [](PyWords& w, int64_t i) { return w.at(i).exchange(0); }, "i"_a, "Sets 0; returns the value before.")
      .def("compare_exchange",
           [](PyWords& w, int64_t i, uint32_t expected, uint32_t desired) {
             return w.at(i).compare_exchange(expected, desired);
           },
           "i"_a, "expected"_a, "desired"_a, "True where the word was `expected`; it is `desired` now.")
      .def("wait_nonzero",
           [](PyWords& w, int64_t i, Timeout timeout) { return w.wait(i, timeout, [](uint32_t v) { return v != 0; }); },
           "i"_a, "timeout"_a = nb::none(), "The value once it is not 0; 0 after `timeout` seconds (None: for ever).")
      .def("wait_change",
           [](PyWords& w, int64_t i, uint32_t old, Timeout timeout) {
             return w.wait(i, timeout, [old](uint32_t v) { return v != old; });
           },
           "i"_a, "old"_a, "timeout"_a = nb::none(), "The value once it is not `old`; `old` after `timeout` seconds.");
}

void bind_versioned_buffer(nb::module_& m) {
  nb::class_<PyVersionedBuffer>(m, "VersionedBuffer", "A versioned blob: one writer publishes, readers copy the newest, never half of one.")
      .def(nb::init<nb::object, size_t, std::optional<uint64_t>>(), "segment"_a, "offset"_a, "nbytes"_a.none())
      .def_static("bytes", [](uint64_t nbytes) { return VersionedBuffer::bytes(nbytes); }, "nbytes"_a)
      .def_prop_ro("segment", &PyVersionedBuffer::segment)
      .def_prop_ro("offset", &PyVersionedBuffer::offset)
      .def_prop_ro("nbytes", [](PyVersionedBuffer& b) { return b->nbytes(); })
      .def_prop_ro("version", [](PyVersionedBuffer& b) { return b->version(); }, "Version published last; 0 before the first.")
      .def_prop_ro("updates", [](PyVersionedBuffer& b) { return b->updates(); }, "Number of updates published.")
      .def("publish",
           [](PyVersionedBuffer& b, ConstBytes from, uint64_t version) {
             const std::byte* bytes = payload(b, from.size(), from.data());
             nb::gil_scoped_release nogil;
             b->publish(bytes, version);
           },
           "source"_a, "version"_a, "Publishes uint8[nbytes]. One writer at a time. Raises ValueError for another size.")
      .def("read",
           [](PyVersionedBuffer& b, Bytes to) {
             payload(b, to.size(), to.data());
             nb::gil_scoped_release nogil;
             return b->read(reinterpret_cast<std::byte*>(to.data()));
           },
           "out"_a, "Copies the newest update into uint8[nbytes]; returns its version. Raises ValueError for another size.")
      .def("wait",
           [](PyVersionedBuffer& b, uint64_t updates_seen, Timeout timeout) {
             if (b->updates() != updates_seen) return true;
             if (!may_wait(timeout)) return false;
             nb::gil_scoped_release nogil;
             return b->wait(updates_seen, deadline(timeout), check_signals);
           },
           "updates_seen"_a, "timeout"_a = nb::none(), "Waits until `updates` is not `updates_seen`; False on timeout.");
}

void bind_slots(nb::module_& m) {
  nb::class_<PySlots>(m, "Slots", "Who owns which slot: credits that survive the death of every owner.")
      .def("__init__",
           [](PySlots* self, nb::object segment, size_t offset, std::optional<uint32_t> n) {
             if (n && (*n < 1 || *n > Slots::kMost)) throw std::invalid_argument("a table has 1 ... 32768 slots");
             new (self) PySlots(std::move(segment), offset, n);
           },
           "segment"_a, "offset"_a, "n"_a.none())
      .def_static("bytes", [](uint32_t n) { return Slots::bytes(n); }, "n"_a)
      .def_static("slot_of", [](int32_t ticket) { return Slots::slot_of(ticket); }, "ticket"_a, "Slot number of a ticket.")
      .def_prop_ro("segment", &PySlots::segment)
      .def_prop_ro("offset", &PySlots::offset)
      .def("__len__", [](PySlots& s) { return s->size(); })
      .def("acquire",
           [](PySlots& s, int64_t owner, Ints out, Timeout timeout) {
             const uint32_t by = checked_owner(owner);
             size_t done = s->try_acquire(by, out.data(), out.size());
             if (done == 0 && out.size() && may_wait(timeout)) {
               nb::gil_scoped_release nogil;
               done = s->acquire(by, out.data(), out.size(), deadline(timeout), check_signals);
             }
             return done;
           },
           "owner"_a, "out"_a, "timeout"_a = nb::none(),
           "Takes up to len(out) free slots for `owner` into out (int32[n]); waits for the first. Returns their number.")
      .def("ticket", [](PySlots& s, int64_t slot) { return s->ticket(checked_slot(s, slot)); }, "slot"_a,
           "The slot's present life and number as one non-negative int32, for a queue.")
      .def("transfer",
           [](PySlots& s, int32_t ticket, int64_t owner) {
             checked_slot(s, Slots::slot_of(ticket));
             return s->transfer(ticket, checked_owner(owner));
           },
           "ticket"_a, "owner"_a,
           "Makes `owner` the owner of the ticket's slot; False where the slot was reclaimed since, or is owned already.")
      .def("release",
           [](PySlots& s, int64_t slot, int64_t owner) {
             return s->release(checked_slot(s, slot), checked_owner(owner));
           },
           "slot"_a, "owner"_a, "Frees the slot; False where `owner` does not own it.")
      .def("reclaim", [](PySlots& s, int64_t owner) { return s->reclaim(checked_owner(owner)); }, "owner"_a,
           "Frees every slot of an owner whose process has ended; returns how many.")
      .def("owner", [](PySlots& s, int64_t slot) { return Slots::owner_of(s->word(checked_slot(s, slot))); }, "slot"_a,
           "Number of the slot's owner; 0: free.")
      .def("count", [](PySlots& s, int64_t owner) { return s->owned(owner ? checked_owner(owner) : 0); }, "owner"_a,
           "Number of slots of an owner; 0: of free slots.");
}

NB_MODULE(ipc, m) {
  // What a daemon thread still holds when the interpreter ends is no leak, and nobody can do anything about it then.
  nb::set_leak_warnings(false);
  m.doc() = "Shared memory, queues, words, versioned buffers and slot credits between processes that may be killed at any time.";
  nb::register_exception_translator([](const std::exception_ptr& p, void*) {
    try {
      std::rethrow_exception(p);
    } catch (const std::system_error& e) {
      nb::object error = nb::module_::import_("builtins").attr("OSError")(e.code().value(), e.what());
      PyErr_SetObject(PyExc_OSError, error.ptr());
    }
  });
  bind_segment(m);
  bind_queue(m);
  bind_words(m);
  bind_versioned_buffer(m);
  bind_slots(m);
}

}  // namespace
}  // namespace headrace::ipc
