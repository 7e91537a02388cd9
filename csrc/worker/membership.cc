// A process that takes part in several rounds (elastic/worker.h).

#include <dirent.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <utility>

#include "elastic/worker.h"
#include "worker/channel_name.h"
#include "worker/channel_state.h"

// Theory of operation. The thread reads the guardian's packets; everything that it shares with the
// calls is in `state`, below its mutex. A forked child has no thread, and gets a new mutex.
//
// `newest` orders the packets: a cut counts if it is for the newest round that this process knows
// or a later one, a new round if it is later. So a packet that was delayed changes nothing. A cut
// for a round that was received and not begun yet takes it back: the process, which is in no round,
// has left that one, too.
//
// The sockets of a round are known by their inodes, which the kernel does not use again soon: the
// TCP connections that exist at end_sockets() and did not at begin_sockets(). A cut between the two
// calls comes while the process opens sockets, so the thread repeats it until the second one.

namespace {

namespace worker = elastic::worker;

constexpr suseconds_t kRepeatUs = 10'000;
constexpr size_t kStackBytes = 256 << 10;  // with the static TLS of all libraries

struct Inodes {
  ino_t* items;
  size_t count;
  size_t room;
  bool is_sorted;

  // Sorted when it is asked for: a process can have ten thousand connections.
  bool contains(ino_t inode) {
    if (!std::exchange(is_sorted, true)) std::sort(items, items + count);
    return std::binary_search(items, items + count, inode);
  }
  bool add(ino_t inode) {
    if (count == room) {
      const size_t more = room == 0 ? 64 : 2 * room;
      void* const grown = std::realloc(items, more * sizeof *items);
      if (grown == nullptr) return false;
      items = static_cast<ino_t*>(grown);
      room = more;
    }
    is_sorted = count == 0 || (is_sorted && items[count - 1] <= inode);
    items[count++] = inode;
    return true;
  }
};

struct State {
  pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
  bool has_thread = false;
  bool is_member = false;
  bool is_gone = false;      // no packet will come
  bool is_out = false;       // in no round
  bool is_awaiting = false;  // in no round before the first one, which was not received yet
  uint64_t round = 0;        // of this process, or the last one that was taken back
  uint64_t newest = 0;
  bool has_next = false;  // `newest` was received and not begun
  size_t next_bytes = 0;
  char next[ELASTIC_WORKER_ROUND_BYTES];
  uint32_t depth = 0;  // of begin_sockets()
  Inodes before{};     // open at the outermost begin_sockets()
  Inodes sockets{};    // of the round
};

State state;
uint32_t is_over = 0;  // what round_is_over() returns; a futex
uint32_t wakes = 0;    // increases when wait_for_round() has something to return; a futex

// Only the thread uses these.
char packet[worker::kRoundHeaderBytes + ELASTIC_WORKER_ROUND_BYTES];

class Lock {
 public:
  Lock() { ::pthread_mutex_lock(&state.mutex); }
  ~Lock() { ::pthread_mutex_unlock(&state.mutex); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
};

// From the link of a descriptor, "socket:[1234]"; 0: it is no socket. Without a call on the
// descriptor itself, which another thread may be opening: ThreadSanitizer takes that for a race.
ino_t socket_inode(int directory, const char* name) {
  char link[32] = {};
  unsigned long long inode = 0;
  if (::readlinkat(directory, name, link, sizeof link - 1) <= 0) return 0;
  return std::sscanf(link, "socket:[%llu]", &inode) == 1 ? static_cast<ino_t>(inode) : 0;
}

int option(int descriptor, int name) {
  int value = -1;
  socklen_t size = sizeof value;
  ::getsockopt(descriptor, SOL_SOCKET, name, &value, &size);
  return value;
}

// A program may end itself when its listening socket is shut down, as gloo does.
bool is_connection(int descriptor) {
  const int domain = option(descriptor, SO_DOMAIN);
  return (domain == AF_INET || domain == AF_INET6) && option(descriptor, SO_TYPE) == SOCK_STREAM &&
         option(descriptor, SO_ACCEPTCONN) == 0;
}

// 0: unknown.
uint16_t peer_port(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (::getpeername(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  if (address.ss_family == AF_INET)
    return ntohs(reinterpret_cast<sockaddr_in*>(&address)->sin_port);
  return ntohs(reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
}

// Calls visit(descriptor, inode) for each TCP connection until it returns false. False: not all.
template <typename Visit>
bool visit_sockets(Visit visit) {
  DIR* const directory = ::opendir("/proc/self/fd");
  if (directory == nullptr) return false;
  bool goes_on = true;
  while (goes_on) {
    const dirent* const entry = ::readdir(directory);
    if (entry == nullptr) break;
    if (entry->d_name[0] == '.') continue;
    const int descriptor = std::atoi(entry->d_name);
    const ino_t inode = socket_inode(::dirfd(directory), entry->d_name);
    if (inode != 0 && is_connection(descriptor)) goes_on = visit(descriptor, inode);
  }
  ::closedir(directory);
  return goes_on;
}

// Another thread may close the descriptor, and open a file of the same number, at any time. The
// copy stays what it is.
void shut_down(int descriptor, ino_t wanted) {
  const int copy = ::fcntl(descriptor, F_DUPFD_CLOEXEC, STDERR_FILENO + 1);
  const int held = copy < 0 ? descriptor : copy;
  struct stat found {};
  if (::fstat(held, &found) == 0 && found.st_ino == wanted) ::shutdown(held, SHUT_RDWR);
  if (copy >= 0) ::close(copy);
}

void cut_sockets() {
  if (state.depth == 0 && state.sockets.count == 0) return;
  visit_sockets([](int descriptor, ino_t inode) {
    const bool is_new = state.depth > 0 && !state.before.contains(inode);
    if (is_new || state.sockets.contains(inode)) shut_down(descriptor, inode);
    return true;
  });
}

void wake_waiters(uint32_t* word) {
  ::syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, INT_MAX, nullptr, nullptr, 0);
}

// Waits while the word has this value; negative: without a limit.
void wait_on(uint32_t* word, uint32_t value, int timeout_ms) {
  const timespec limit{timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
  ::syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, timeout_ms < 0 ? nullptr : &limit, nullptr,
            0);
}

void wake() {
  __atomic_fetch_add(&wakes, 1, __ATOMIC_SEQ_CST);
  wake_waiters(&wakes);
}

void set_over() {
  __atomic_store_n(&is_over, 1, __ATOMIC_SEQ_CST);
  wake_waiters(&is_over);
}

// port: of the peers whose connections belong to the round; 0: all of them.
void end_sockets(uint16_t port) {
  const Lock lock;
  if (state.depth == 0) return;
  if (state.depth == 1) {
    if (__atomic_load_n(&is_over, __ATOMIC_RELAXED) != 0 && !state.is_out) cut_sockets();
    visit_sockets([port](int descriptor, ino_t inode) {
      const bool is_of_round = port == 0 || peer_port(descriptor) == port;
      return state.before.contains(inode) || !is_of_round || state.sockets.add(inode);
    });
  }
  --state.depth;
}

void report_left() {
  const uint64_t left = state.is_awaiting ? ELASTIC_WORKER_NO_ROUND : state.round + 1;
  __atomic_store_n(&elastic_worker_page_in_use->left_round, left, __ATOMIC_SEQ_CST);
  worker::notify(worker::kLeft);
}

void end_round() {
  set_over();
  worker::wake_stopping_thread();
  if (!state.is_out) cut_sockets();
}

void on_cut(uint64_t round) {
  if (round < state.newest) return;
  state.newest = state.round = round;
  state.has_next = false;
  end_round();
  if (state.is_out) report_left();
}

void on_round(uint64_t round, const char* variables, size_t bytes) {
  const bool is_newer = round > state.newest || state.is_awaiting;
  if (!is_newer || bytes == 0) return;
  state.is_awaiting = false;
  state.newest = round;
  state.has_next = true;
  state.next_bytes = bytes;
  std::memcpy(state.next, variables, bytes);
  end_round();
  wake();
}

void on_packet(size_t bytes) {
  if (bytes < worker::kRoundHeaderBytes) return;
  uint64_t round = 0;
  std::memcpy(&round, packet + 1, sizeof round);
  const char* const rest = packet + worker::kRoundHeaderBytes;
  const Lock lock;
  if (packet[0] == worker::kCut) on_cut(round);
  if (packet[0] == worker::kNewRound) on_round(round, rest, bytes - worker::kRoundHeaderBytes);
}

// A cut while sockets are being opened is not complete. False: nothing is to be repeated.
bool repeat_cut() {
  const Lock lock;
  if (__atomic_load_n(&is_over, __ATOMIC_RELAXED) == 0 || state.is_out) return false;
  if (state.depth > 0) cut_sockets();
  return true;
}

// A call that waits keeps the socket, whatever the script does with the descriptor; before each
// call the number is checked.
int blocking_socket() {
  const int socket = worker::own_socket();
  const int flags = socket < 0 ? -1 : ::fcntl(socket, F_GETFL);
  if (flags >= 0 && (flags & O_NONBLOCK) != 0) ::fcntl(socket, F_SETFL, flags & ~O_NONBLOCK);
  return socket;
}

void* run(void* /*unused*/) {
  ::pthread_setname_np(::pthread_self(), "elastic-member");
  bool repeats = false;
  while (true) {
    const int socket = blocking_socket();
    if (socket < 0) break;
    if (repeats != repeat_cut()) {
      repeats = !repeats;
      const timeval limit{0, repeats ? kRepeatUs : 0};  // zero: none
      ::setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    }
    const ssize_t got = ::recv(socket, packet, sizeof packet, 0);
    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR)) break;
    if (got > 0) on_packet(static_cast<size_t>(got));
  }
  const Lock lock;
  state.is_gone = true;
  wake();
  return nullptr;
}

bool create_thread(size_t stack) {
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return false;
  ::pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  if (stack > 0) ::pthread_attr_setstacksize(&attributes, stack);
  pthread_t thread;
  const int error = ::pthread_create(&thread, &attributes, run, nullptr);
  ::pthread_attr_destroy(&attributes);
  return error == 0;
}

bool start_thread() {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  const bool is_started = create_thread(kStackBytes) || create_thread(0);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return is_started;
}

void leave() {
  if (!state.is_member || state.is_out) return;
  state.is_out = true;
  state.depth = 0;
  state.sockets.count = 0;
  set_over();
  report_left();
}

// The page's words of the earlier round, and the first report.
void begin_round() {
  elastic_worker_page* const page = elastic_worker_page_in_use;
  const auto clear = [](int64_t* word) {
    __atomic_store_n(word, ELASTIC_WORKER_NO_STEP, __ATOMIC_SEQ_CST);
  };
  clear(&page->step);
  clear(&page->stopped_at);
  clear(&page->first_step);
  clear(&page->waits_at);
  __atomic_store_n(&page->is_counted, 0U, __ATOMIC_SEQ_CST);
  __atomic_store_n(&elastic_worker_is_reporting, 0, __ATOMIC_RELEASE);
  state.round = state.newest;
  state.has_next = state.is_out = false;
  worker::set_round(state.round);
  __atomic_store_n(&is_over, 0, __ATOMIC_RELEASE);
}

// As wait_for_round(), without the wait.
int take_round(char* out, size_t size) {
  const Lock lock;
  leave();
  if (!state.is_member) return -1;
  if (!state.has_next) return state.is_gone ? -1 : 0;
  const auto bytes = static_cast<int>(state.next_bytes);
  if (state.next_bytes > size) return bytes;
  std::memcpy(out, state.next, state.next_bytes);
  begin_round();
  return bytes;
}

}  // namespace

namespace elastic::worker {

void detach_membership() {
  const pthread_mutex_t unlocked = PTHREAD_MUTEX_INITIALIZER;
  state.mutex = unlocked;  // a thread of the parent may have had it
  state.has_thread = state.is_member = state.is_gone = state.is_awaiting = false;
  state.is_out = state.has_next = false;
  state.depth = 0;
  is_over = 0;
}

}  // namespace elastic::worker

extern "C" {

int elastic_worker_join_membership(void) {
  if (!worker::is_attached()) return 0;
  const Lock lock;
  if (state.is_member) return 1;
  if (!state.has_thread) {
    state.round = state.newest = elastic_worker_round();
    const char* const awaits = std::getenv("ELASTIC_AWAITS_ROUND");
    state.is_awaiting = awaits != nullptr && std::strcmp(awaits, "1") == 0;
    if (!start_thread()) return 0;
    state.has_thread = true;
  }
  state.is_member = worker::notify(worker::kMember);
  return state.is_member ? 1 : 0;
}

int elastic_worker_round_is_over(void) {
  return __atomic_load_n(&is_over, __ATOMIC_ACQUIRE) == 0 ? 0 : 1;
}

int elastic_worker_wait_until_over(int timeout_ms) {
  if (elastic_worker_round_is_over() == 0 && timeout_ms != 0) wait_on(&is_over, 0, timeout_ms);
  return elastic_worker_round_is_over();
}

void elastic_worker_begin_sockets(void) {
  const Lock lock;
  if (!state.is_member || ++state.depth > 1) return;
  state.before.count = 0;
  // Without all of them the sockets of the round cannot be told from others.
  if (!visit_sockets([](int, ino_t inode) { return state.before.add(inode); })) state.depth = 0;
}

void elastic_worker_end_sockets(void) { end_sockets(0); }

void elastic_worker_end_sockets_to(uint16_t port) { end_sockets(port); }

void elastic_worker_leave_round(void) {
  const Lock lock;
  leave();
}

int elastic_worker_wait_for_round(char* out, size_t size, int timeout_ms) {
  const uint32_t before = __atomic_load_n(&wakes, __ATOMIC_SEQ_CST);
  const int found = take_round(out, size);
  if (found != 0 || timeout_ms == 0) return found;
  wait_on(&wakes, before, timeout_ms);
  return take_round(out, size);
}

}  // extern "C"
