// Anonymous shared memory that cannot be left behind.
#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

namespace headrace::ipc {

// A memfd mapped MAP_SHARED: it has no name in /dev/shm, is not limited by that file system's size, and the kernel frees
// it with the last process that has it open or mapped, however that process ends. Zero at first. Sealed against
// resizing, so that no process can take the memory from under another (SIGBUS).
class Segment {
 public:
  // Throws std::system_error: EFBIG / ENOMEM for a size the kernel refuses, EMFILE where descriptors ran out.
  explicit Segment(size_t nbytes) : nbytes_(nbytes) {
    fd_ = memfd_create("headrace", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd_ < 0) fail("memfd_create");
    if (ftruncate(fd_, static_cast<off_t>(nbytes)) < 0) fail("ftruncate");
    if (fcntl(fd_, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) < 0) fail("fcntl(F_ADD_SEALS)");
    map();
  }

  // Takes over a descriptor of another Segment (inherited, or received from another process).
  struct FromFd {
    int fd;
  };
  explicit Segment(FromFd from) : fd_(from.fd) {
    struct stat status;
    if (fstat(fd_, &status) < 0) fail("fstat");
    nbytes_ = static_cast<size_t>(status.st_size);
    map();
  }

  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment() {
    if (data_) munmap(data_, nbytes_);
    close(fd_);
  }

  std::byte* data() const { return data_; }
  size_t nbytes() const { return nbytes_; }
  int fd() const { return fd_; }

  // Gives every page its memory now, so that page faults do not come while training.
  void prefault() const {
#ifndef MADV_POPULATE_WRITE
    constexpr int MADV_POPULATE_WRITE = 23;
#endif
    if (madvise(data_, nbytes_, MADV_POPULATE_WRITE) == 0) return;
    if (errno != EINVAL) throw std::system_error(errno, std::generic_category(), "madvise(MADV_POPULATE_WRITE)");
    // Linux before 5.14. fallocate gives the pages too; only the mapping's page-table entries are made later.
    if (fallocate(fd_, 0, 0, static_cast<off_t>(nbytes_)) < 0)
      throw std::system_error(errno, std::generic_category(), "fallocate");
  }

  // The address of `length` bytes at `offset`; throws std::out_of_range where the segment is too short.
  std::byte* at(size_t offset, size_t length) const {
    if (offset % 64) throw std::out_of_range("offset " + std::to_string(offset) + " is not a multiple of 64");
    if (offset > nbytes_ || length > nbytes_ - offset)
      throw std::out_of_range(std::to_string(length) + " bytes at offset " + std::to_string(offset) +
                              " do not fit into a segment of " + std::to_string(nbytes_));
    return data_ + offset;
  }

 private:
  void map() {
    void* address = mmap(nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    if (address == MAP_FAILED) fail("mmap");
    data_ = static_cast<std::byte*>(address);
  }

  [[noreturn]] void fail(const char* what) {
    const int error = errno;
    if (fd_ >= 0) close(fd_);
    throw std::system_error(error, std::generic_category(), std::string(what) + " (" + std::to_string(nbytes_) + " bytes)");
  }

  int fd_ = -1;
  size_t nbytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace headrace::ipc
