#include "elastic/worker.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "worker/channel_name.h"
#include "worker/channel_state.h"

// Theory of operation. Every function works on a page. Before elastic_worker_open(), and without a
// channel, that is a private page on which nothing is ever stopped.
//
// ELASTIC_CHANNEL names two descriptors with their devices and inodes, because wrappers close
// descriptors and keep variables: another file may have the number by now. The first process that
// sets the owner word has the channel; a child that inherited everything finds it taken. A forked
// child loses the mapping (MADV_DONTFORK), so it gets the private page back in a fork handler.
//
// The library is linked into programs of C: no exceptions, no C++ runtime.

namespace {

using elastic::worker::ChannelName;

constexpr int kSectionsKept = 16;

// The reserved parts are zero; a step of zero would be a report.
constexpr elastic_worker_page make_private_page() {
  elastic_worker_page page{};
  page.tentative_stop = page.committed_stop = ELASTIC_WORKER_NO_STEP;
  page.step = page.stopped_at = ELASTIC_WORKER_NO_STEP;
  page.first_step = page.waits_at = ELASTIC_WORKER_NO_STEP;
  return page;
}

constinit elastic_worker_page private_page = make_private_page();

struct Section {
  int64_t limit_ms;
  char name[ELASTIC_WORKER_SECTION_BYTES];
};

struct Channel {
  int memory = -1;
  int socket = -1;
  dev_t memory_device = 0;
  ino_t memory_inode = 0;
  dev_t socket_device = 0;
  ino_t socket_inode = 0;
  bool has_fork_handler = false;
  uint32_t depth = 0;
  Section sections[kSectionsKept];  // the outer ones; deeper sections have the name of the last
};

Channel channel;
uint64_t given_round = 0;     // plus 1; 0: the environment's
bool reports_itself = false;  // the script, not a hook that counts its steps

template <typename T>
void set(T* word, T value) {
  __atomic_store_n(word, value, __ATOMIC_RELAXED);
}

bool is_named(int descriptor, uint64_t device, uint64_t inode, mode_t type) {
  struct stat found {};
  return descriptor > STDERR_FILENO && ::fstat(descriptor, &found) == 0 &&
         (found.st_mode & S_IFMT) == type && found.st_dev == device && found.st_ino == inode;
}

// Without the seal another process could truncate the file, and an access would raise SIGBUS.
bool is_sealed(int memory) {
  struct stat found {};
  const int seals = ::fcntl(memory, F_GET_SEALS);
  return seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && ::fstat(memory, &found) == 0 &&
         found.st_size == ELASTIC_WORKER_BYTES;
}

// The word is free, or its process has ended (a wrapper that imported elastic.worker).
bool claim(elastic_worker_page* page) {
  int64_t owner = __atomic_load_n(&page->owner, __ATOMIC_SEQ_CST);
  const bool is_free = owner == 0 || (owner > 0 && owner <= INT32_MAX &&
                                      ::kill(static_cast<pid_t>(owner), 0) != 0 && errno == ESRCH);
  return is_free && __atomic_compare_exchange_n(&page->owner, &owner, int64_t{::getpid()}, false,
                                                __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

elastic_worker_page* map(int memory) {
  void* const mapped =
      ::mmap(nullptr, ELASTIC_WORKER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
  if (mapped == MAP_FAILED) return nullptr;
  auto* const page = static_cast<elastic_worker_page*>(mapped);
  const bool is_ours =
      page->magic == ELASTIC_WORKER_MAGIC && page->layout == ELASTIC_WORKER_LAYOUT && claim(page);
  if (is_ours && ::madvise(mapped, ELASTIC_WORKER_BYTES, MADV_DONTFORK) == 0) return page;
  ::munmap(mapped, ELASTIC_WORKER_BYTES);
  return nullptr;
}

// In the child: its copies of the descriptors could keep the worker's socket open.
void detach() {
  if (!elastic::worker::is_attached()) return;
  elastic::worker::detach_membership();
  elastic_worker_page_in_use = &private_page;
  elastic_worker_is_reporting = 1;
  if (elastic_worker_owns_stacks_descriptor() != 0) ::close(channel.memory);
  if (is_named(channel.socket, channel.socket_device, channel.socket_inode, S_IFSOCK)) {
    ::close(channel.socket);
  }
  channel.memory = channel.socket = -1;
  channel.depth = 0;
}

void show_section() {
  elastic_worker_page* const page = elastic_worker_page_in_use;
  const uint32_t sequence = page->section_sequence | 1U;
  __atomic_store_n(&page->section_sequence, sequence, __ATOMIC_SEQ_CST);
  set(&page->section_depth, channel.depth);
  if (channel.depth > 0) {
    const uint32_t index = channel.depth < kSectionsKept ? channel.depth : kSectionsKept;
    const Section& section = channel.sections[index - 1];
    set(&page->section_limit_ms, section.limit_ms);
    std::memcpy(page->section, section.name, sizeof section.name);
  } else {
    set(&page->section_limit_ms, int64_t{0});
  }
  __atomic_store_n(&page->section_sequence, sequence + 1, __ATOMIC_SEQ_CST);
}

uint64_t number_of(const char* name) {
  const char* const text = std::getenv(name);
  return text == nullptr ? 0 : std::strtoull(text, nullptr, 10);
}

}  // namespace

namespace elastic::worker {

bool is_attached() { return elastic_worker_page_in_use != &private_page; }

int own_socket() {
  return is_named(channel.socket, channel.socket_device, channel.socket_inode, S_IFSOCK)
             ? channel.socket
             : -1;
}

bool notify(char message) {
  const int error = errno;
  const bool is_sent = ::send(own_socket(), &message, 1, MSG_DONTWAIT | MSG_NOSIGNAL) == 1;
  errno = error;
  return is_sent;
}

void wake_stopping_thread() {
  elastic_worker_page* const page = elastic_worker_page_in_use;
  __atomic_fetch_add(&page->stop_sequence, 1, __ATOMIC_SEQ_CST);
  ::syscall(SYS_futex, &page->stop_sequence, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void set_round(uint64_t round) { set(&given_round, round + 1); }

}  // namespace elastic::worker

using elastic::worker::is_attached;
using elastic::worker::notify;

extern "C" {

elastic_worker_page* elastic_worker_page_in_use = &private_page;
int elastic_worker_is_reporting = 1;

int elastic_worker_open(void) {
  if (is_attached()) return 1;
  ChannelName name;
  if (!elastic::worker::parse(std::getenv(elastic::worker::kVariable), &name)) return 0;
  if (!is_named(name.memory, name.memory_device, name.memory_inode, S_IFREG) ||
      !is_named(name.socket, name.socket_device, name.socket_inode, S_IFSOCK) ||
      !is_sealed(name.memory)) {
    return 0;
  }
  if (!channel.has_fork_handler && ::pthread_atfork(nullptr, nullptr, detach) != 0) return 0;
  channel.has_fork_handler = true;
  elastic_worker_page* const page = map(name.memory);
  if (page == nullptr) return 0;
  ::fcntl(name.memory, F_SETFD, FD_CLOEXEC);
  ::fcntl(name.socket, F_SETFD, FD_CLOEXEC);
  channel.memory = name.memory;
  channel.socket = name.socket;
  channel.memory_device = static_cast<dev_t>(name.memory_device);
  channel.memory_inode = static_cast<ino_t>(name.memory_inode);
  channel.socket_device = static_cast<dev_t>(name.socket_device);
  channel.socket_inode = static_cast<ino_t>(name.socket_inode);
  elastic_worker_page_in_use = page;
  elastic_worker_is_reporting = 0;
  set(&page->left_round, uint64_t{0});  // of a wrapper that has ended
  notify(elastic::worker::kOpened);
  return 1;
}

void elastic_worker_begin_reports(void) {
  set(&elastic_worker_is_reporting, 1);
  set(&reports_itself, true);
  elastic_worker_page* const page = elastic_worker_page_in_use;
  set(&page->first_step, __atomic_load_n(&page->step, __ATOMIC_RELAXED));
  __atomic_store_n(&page->is_counted, 0U, __ATOMIC_SEQ_CST);
  notify(elastic::worker::kReporting);
}

void elastic_worker_count(int64_t step) {
  if (!is_attached() || __atomic_load_n(&reports_itself, __ATOMIC_RELAXED)) return;
  elastic_worker_page* const page = elastic_worker_page_in_use;
  const bool is_first = __atomic_load_n(&page->is_counted, __ATOMIC_RELAXED) == 0;
  if (is_first) {
    // Before the step, so that no agreed step is computed from it.
    __atomic_store_n(&page->is_counted, 1U, __ATOMIC_SEQ_CST);
    set(&page->first_step, step);
  }
  set(&page->step, step);
  if (is_first) notify(elastic::worker::kReporting);
}

void elastic_worker_enter(const char* name, int64_t limit_ms) {
  if (!is_attached()) return;
  if (channel.depth < kSectionsKept) {
    Section& section = channel.sections[channel.depth];
    section.limit_ms = limit_ms;
    std::memset(section.name, 0, sizeof section.name);
    std::strncpy(section.name, name, sizeof section.name - 1);
  }
  ++channel.depth;
  show_section();
}

void elastic_worker_leave(void) {
  if (!is_attached() || channel.depth == 0) return;
  --channel.depth;
  show_section();
}

uint64_t elastic_worker_round(void) {
  const uint64_t given = __atomic_load_n(&given_round, __ATOMIC_RELAXED);
  return given > 0 ? given - 1 : number_of("ELASTIC_ROUND");
}

int elastic_worker_is_restart(void) {
  return elastic_worker_round() > 0 || number_of("TORCHELASTIC_RESTART_COUNT") > 0 ? 1 : 0;
}

int elastic_worker_wait_for_stop(int64_t step, int timeout_ms) {
  elastic_worker_page* const page = elastic_worker_page_in_use;
  const uint32_t sequence = __atomic_load_n(&page->stop_sequence, __ATOMIC_SEQ_CST);
  const int64_t committed = __atomic_load_n(&page->committed_stop, __ATOMIC_SEQ_CST);
  if (committed != ELASTIC_WORKER_NO_STEP && step >= committed) {
    __atomic_store_n(&page->stopped_at, step, __ATOMIC_SEQ_CST);
    notify(elastic::worker::kStopped);
    return 1;
  }
  const int64_t tentative = __atomic_load_n(&page->tentative_stop, __ATOMIC_SEQ_CST);
  if (tentative == ELASTIC_WORKER_NO_STEP || step < tentative) return 0;
  if (elastic_worker_round_is_over() != 0) return 0;
  __atomic_store_n(&page->waits_at, step, __ATOMIC_SEQ_CST);
  notify(elastic::worker::kWaiting);
  const timespec limit{timeout_ms / 1000, timeout_ms % 1000 * 1000000L};
  ::syscall(SYS_futex, &page->stop_sequence, FUTEX_WAIT, sequence, &limit, nullptr, 0);
  return -1;
}

int elastic_worker_stop_reason(char* out, size_t size) {
  constexpr int kReads = 1000;  // a guardian that is killed may leave it odd
  const elastic_worker_page* const page = elastic_worker_page_in_use;
  if (size == 0) return 0;
  for (int i = 0; i < kReads; ++i) {
    const uint32_t before = __atomic_load_n(&page->stop_reason_sequence, __ATOMIC_SEQ_CST);
    size_t length = 0;
    for (; length + 1 < size && length < sizeof page->stop_reason; ++length) {
      out[length] = __atomic_load_n(&page->stop_reason[length], __ATOMIC_SEQ_CST);
      if (out[length] == '\0') break;
    }
    out[length] = '\0';
    const uint32_t after = __atomic_load_n(&page->stop_reason_sequence, __ATOMIC_SEQ_CST);
    if (before % 2 == 0 && before == after) return length > 0 ? 1 : 0;
  }
  out[0] = '\0';
  return 0;
}

int elastic_worker_stacks_descriptor(void) { return channel.memory; }

int elastic_worker_owns_stacks_descriptor(void) {
  const int error = errno;
  const bool is_ours =
      is_named(channel.memory, channel.memory_device, channel.memory_inode, S_IFREG);
  errno = error;
  return is_ours ? 1 : 0;
}

void elastic_worker_offer_stacks(int number) {
  set(&elastic_worker_page_in_use->stacks_signal, static_cast<uint32_t>(number));
}

void elastic_worker_announce_watch(void) { notify(elastic::worker::kWatching); }

void elastic_worker_report_error(void) { notify(elastic::worker::kRaised); }

void elastic_worker_stacks_written(void) {
  __atomic_fetch_add(&elastic_worker_page_in_use->stacks_written, 1, __ATOMIC_SEQ_CST);
  notify(elastic::worker::kStacksWritten);
}

}  // extern "C"
