// Lets a Doom engine that waits for the other players of a match give up its core.
//
// An engine asks its socket for packets over and over until the commands of all players have come (ZDoom's TryRunTics). Where
// it has taken the core on which another engine of the match is to run, both wait until the kernel takes it away: milliseconds
// for a frame that takes microseconds. Preloaded into the engine (envs/vizdoom/engine.sh), this recvfrom yields whenever there
// is no packet. With a core for each engine nothing changes, since there is nobody to yield to. Waiting in the kernel instead
// (poll) was 20 times slower: engines ask many times in a frame when they need not wait.

#include <dlfcn.h>
#include <sched.h>
#include <sys/socket.h>

#include <cerrno>

extern "C" ssize_t recvfrom(int socket, void* buffer, size_t size, int flags, sockaddr* from, socklen_t* from_size) {
    using Function = ssize_t (*)(int, void*, size_t, int, sockaddr*, socklen_t*);
    static const Function original = reinterpret_cast<Function>(dlsym(RTLD_NEXT, "recvfrom"));
    const ssize_t received = original(socket, buffer, size, flags, from, from_size);
    if (received < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
        const int error = errno;
        sched_yield();
        errno = error;
    }
    return received;
}
