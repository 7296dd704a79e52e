// Preloaded into every Doom engine (envs/vizdoom/engine.sh): what an engine that shares its core needs otherwise than a game.
//
// - Engine and environment talk through queues of Boost.Interprocess, which signal while they hold a mutex that the other side
//   takes next. In training both have one core: whoever was woken found the mutex locked and gave the core back, two changes of the
//   process for each message. Here the engine's signals wait until it has unlocked, and an engine that is woken does not push its
//   environment from the core (SCHED_BATCH).
// - SDL asks the system for new joysticks twice in a frame. Here there are none.
// - An engine of a match that waits for the other players asks its socket for packets over and over (ZDoom's TryRunTics). Where it
//   has taken the core on which another engine is to run, both wait until the kernel takes it away: milliseconds for a frame that
//   takes microseconds. Here recvfrom yields whenever there is no packet. With a core for each engine nothing changes, since there
//   is nobody to yield to. Waiting in the kernel instead (poll) was 20 times slower: engines ask many times when they need not wait.

#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstdint>

namespace {

/// The function that would be called without this library. `kept`: for it, zero at first. (A static variable that is made by a
/// call would be guarded by a mutex in some C++ libraries, whose functions are among those here.)
template <typename Function>
Function original(std::atomic<void*>& kept, const char* name) {
  void* found = kept.load(std::memory_order_relaxed);
  if (found == nullptr) {
    // Conditions of glibc before 2.3.2 were others, and their functions are still there under the same names.
    found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");
    if (found == nullptr) found = dlsym(RTLD_NEXT, name);
    kept.store(found, std::memory_order_relaxed);
  }
  return reinterpret_cast<Function>(found);
}

thread_local int held = 0;  // mutexes that this thread has locked
thread_local pthread_cond_t* waiting = nullptr;  // the condition whose signal waits

void send_signal() {
  static std::atomic<void*> kept;
  const auto function = original<int (*)(pthread_cond_t*)>(kept, "pthread_cond_signal");
  if (pthread_cond_t* condition = waiting) {
    waiting = nullptr;
    function(condition);
  }
}

__attribute__((constructor)) void do_not_push() {
  const sched_param none{};
  sched_setscheduler(0, SCHED_BATCH, &none);
}

}  // namespace

extern "C" {

int pthread_cond_signal(pthread_cond_t* condition) {
  send_signal();
  waiting = condition;
  if (held == 0) send_signal();
  return 0;
}

int pthread_mutex_unlock(pthread_mutex_t* mutex) {
  static std::atomic<void*> kept;
  const auto function = original<int (*)(pthread_mutex_t*)>(kept, "pthread_mutex_unlock");
  const int result = function(mutex);
  held -= held > 0;
  send_signal();
  return result;
}

// Before anything that may wait, no signal may be left.

int pthread_mutex_lock(pthread_mutex_t* mutex) {
  static std::atomic<void*> kept;
  const auto function = original<int (*)(pthread_mutex_t*)>(kept, "pthread_mutex_lock");
  send_signal();
  const int result = function(mutex);
  held += result == 0;
  return result;
}

int pthread_mutex_trylock(pthread_mutex_t* mutex) {
  static std::atomic<void*> kept;
  const auto function = original<int (*)(pthread_mutex_t*)>(kept, "pthread_mutex_trylock");
  const int result = function(mutex);
  held += result == 0;
  return result;
}

int pthread_cond_wait(pthread_cond_t* condition, pthread_mutex_t* mutex) {
  static std::atomic<void*> kept;
  const auto function = original<int (*)(pthread_cond_t*, pthread_mutex_t*)>(kept, "pthread_cond_wait");
  send_signal();
  return function(condition, mutex);
}

int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until) {
  static std::atomic<void*> kept;
  const auto function = original<int (*)(pthread_cond_t*, pthread_mutex_t*, const timespec*)>(kept, "pthread_cond_timedwait");
  send_signal();
  return function(condition, mutex, until);
}

ssize_t recvfrom(int socket, void* buffer, size_t size, int flags, sockaddr* from, socklen_t* from_size) {
  static std::atomic<void*> kept;
  const auto function = original<ssize_t (*)(int, void*, size_t, int, sockaddr*, socklen_t*)>(kept, "recvfrom");
  const ssize_t received = function(socket, buffer, size, flags, from, from_size);
  if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
    const int error = errno;
    sched_yield();
    errno = error;
  }
  return received;
}

constexpr std::uint32_t kJoystick = 0x200;  // SDL_INIT_JOYSTICK

int SDL_Init(std::uint32_t parts) {
  static std::atomic<void*> kept;
  const auto function = original<int (*)(std::uint32_t)>(kept, "SDL_Init");
  return function(parts & ~kJoystick);
}

int SDL_InitSubSystem(std::uint32_t parts) {
  static std::atomic<void*> kept;
  const auto function = original<int (*)(std::uint32_t)>(kept, "SDL_InitSubSystem");
  return function(parts & ~kJoystick);
}

}  // extern "C"
