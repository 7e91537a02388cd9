#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "core/snapshot/format.h"
#include "elastic/worker.h"
#include "elastic/worker_snapshot.h"
#include "worker/channel_name.h"
#include "worker/channel_state.h"
#include "worker/snapshot_messages.h"

// Theory of operation. The worker makes the files (memfd_create), since it knows their size and the
// pages that it touches first are charged to its control group, and passes their descriptors to the
// guardian, which keeps them open. So the memory has no name that could collide or be left over, is
// not bound by the size of /dev/shm, and is gone when the guardian and the workers are.
//
// The exchange has a socket of its own, whose other end goes to the guardian over the channel: on
// the channel a thread of the membership may read. The next process of the rank receives the files
// in reply to its hello.
//
// A file is sealed against changes of its size, so an access never raises SIGBUS. It is mapped for
// good, without huge pages; a forked child does not inherit the mapping.
//
// The first touch of memory takes ten times as long as the copy. It cannot be avoided for the first
// snapshot; the pages of the second file are touched by a thread, which the second save ends.

namespace {

using elastic::snapshot::Entry;
using elastic::snapshot::Header;
using elastic::snapshot::Kind;
using elastic::snapshot::State;
using elastic::worker::kSlots;
using elastic::worker::SnapshotKind;
using elastic::worker::SnapshotPacket;

constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;
constexpr int kReplyTimeoutMs = 10'000;
constexpr size_t kTouchedAtOnce = 8 << 20;
constexpr size_t kStackBytes = 256 << 10;  // with the static TLS of all libraries
constexpr int kMadvPopulateWrite = 23;     // since Linux 5.14

struct Slot {
  int file = -1;
  uint64_t size = 0;
  char* bytes = nullptr;
};

struct Snapshots {
  int socket = -1;  // -1: not connected yet
  uint32_t rank = 0;
  uint32_t world = 0;
  uint64_t round = 0;
  Slot slots[kSlots];
  Slot shared;            // read only: of another rank
  int newest = -1;        // the slot of the last snapshot
  uint64_t sequence = 0;  // of the last one
  int64_t step = -1;      // from which the round continues
  int from = -1;          // the slot that has it; kSharedSlot: `shared`
  bool is_own = false;    // so do all ranks, each from its own
  uint32_t digest = 0;    // of that snapshot
  bool has_saved = false;
  bool has_failed = false;                 // the guardian does not answer
  elastic_snapshot_part* parts = nullptr;  // what was restored
  pthread_t thread{};
  bool is_touching = false;
  int must_stop = 0;
  char error[256] = {};
};

Snapshots self;

int fail(const char* format, const char* what = "") {
  std::snprintf(self.error, sizeof self.error, format, what);
  return 0;
}

bool number_of(const char* name, uint32_t* out) {
  const char* const text = std::getenv(name);
  if (text == nullptr || *text == '\0') return false;
  char* end = nullptr;
  const unsigned long value = std::strtoul(text, &end, 10);
  *out = static_cast<uint32_t>(value);
  return *end == '\0' && value <= INT32_MAX;
}

Slot& slot_of(int index) { return index == kSlots ? self.shared : self.slots[index]; }

// Sends the packet, and a descriptor if it is not -1.
bool send_to(int socket, const void* bytes, size_t size, int descriptor) {
  iovec data{const_cast<void*>(bytes), size};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptor)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (descriptor >= 0) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof descriptor);
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  ssize_t sent = 0;
  do {
    sent = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(size);
}

bool send_packet(SnapshotPacket packet, int descriptor = -1) {
  packet.rank = self.rank;
  packet.world = self.world;
  return send_to(self.socket, &packet, sizeof packet, descriptor);
}

constexpr int kFilesMax = kSlots + 1;

// Waits for the guardian's reply, with its descriptors; -1 where there is none.
bool receive_packet(SnapshotPacket* packet, int (&descriptors)[kFilesMax]) {
  pollfd item{self.socket, POLLIN, 0};
  int ready = 0;
  do {
    ready = ::poll(&item, 1, kReplyTimeoutMs);
  } while (ready < 0 && errno == EINTR);
  if (ready <= 0) return false;
  iovec data{packet, sizeof *packet};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof descriptors)] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t got = ::recvmsg(self.socket, &message, MSG_CMSG_CLOEXEC);
  for (int& one : descriptors) one = -1;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (got > 0 && header != nullptr && header->cmsg_type == SCM_RIGHTS) {
    std::memcpy(descriptors, CMSG_DATA(header), header->cmsg_len - CMSG_LEN(0));
  }
  packet->text[sizeof packet->text - 1] = '\0';
  return got == sizeof *packet;
}

elastic_snapshot_observer observer = nullptr;

bool map(Slot* slot, int protection = PROT_READ | PROT_WRITE) {
  struct stat found {};
  const int seals = ::fcntl(slot->file, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(slot->file, &found) != 0) return false;
  slot->size = static_cast<uint64_t>(found.st_size);
  void* const mapped = ::mmap(nullptr, slot->size, protection, MAP_SHARED, slot->file, 0);
  if (mapped == MAP_FAILED) return false;
  ::madvise(mapped, slot->size, MADV_DONTFORK);
  slot->bytes = static_cast<char*>(mapped);
  if (observer != nullptr) observer(slot->bytes, slot->size, 1);
  return true;
}

void release(Slot* slot) {
  if (slot->bytes != nullptr && observer != nullptr) observer(slot->bytes, slot->size, 0);
  if (slot->bytes != nullptr) ::munmap(slot->bytes, slot->size);
  if (slot->file >= 0) ::close(slot->file);
  *slot = {};
}

// In a forked child: the snapshots are its parent's. The mappings are not inherited.
void forget() {
  if (self.socket >= 0) ::close(self.socket);
  for (Slot& slot : self.slots) {
    if (slot.file >= 0) ::close(slot.file);
  }
  if (self.shared.file >= 0) ::close(self.shared.file);
  self = {};
}

void end_touching() {
  if (!self.is_touching) return;
  __atomic_store_n(&self.must_stop, 1, __ATOMIC_RELEASE);
  ::pthread_join(self.thread, nullptr);
  self.is_touching = false;
}

// The guardian has released the files of a round that has changed in place.
void disconnect() {
  end_touching();
  for (Slot& slot : self.slots) release(&slot);
  release(&self.shared);
  std::free(self.parts);
  ::close(self.socket);
  self = {};
}

// Connects to the guardian, once in a round. False: there is none, or it does not answer.
bool connect_to_guardian() {
  uint32_t rank = 0;
  uint32_t world = 0;
  const bool is_ranked = number_of("RANK", &rank) && number_of("WORLD_SIZE", &world);
  if (self.socket >= 0) {
    if (self.round == elastic_worker_round()) return true;
    disconnect();
  }
  if (self.has_failed) return fail("the launcher's guardian does not answer") != 0;
  if (!elastic::worker::is_attached()) {
    return fail("this process has no launcher that keeps snapshots") != 0;
  }
  if (!is_ranked) return fail("RANK or WORLD_SIZE is not set") != 0;
  self.rank = rank;
  self.world = world;
  self.round = elastic_worker_round();
  int ends[2];
  static bool has_fork_handler = false;
  if (!has_fork_handler && ::pthread_atfork(nullptr, nullptr, forget) != 0) return false;
  has_fork_handler = true;
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail("socketpair: %s", std::strerror(errno)) != 0;
  }
  self.socket = ends[0];
  const char message = elastic::worker::kSnapshots;
  SnapshotPacket reply;
  int files[kFilesMax];
  const bool is_sent = send_to(elastic::worker::own_socket(), &message, 1, ends[1]);
  ::close(ends[1]);
  const bool is_answered = is_sent && send_packet({.kind = SnapshotKind::kHello}) &&
                           receive_packet(&reply, files) && reply.kind == SnapshotKind::kSlots;
  if (!is_answered) {
    ::close(self.socket);
    self.socket = -1;
    self.has_failed = true;
    return fail("the launcher's guardian does not answer") != 0;
  }
  int next = 0;
  for (int i = 0; i < kSlots; ++i) {
    if ((reply.slot >> i & 1) == 0) continue;
    self.slots[i].file = files[next++];
    if (self.slots[i].file >= 0 && !map(&self.slots[i])) release(&self.slots[i]);
  }
  if ((reply.slot >> elastic::worker::kSharedSlot & 1) != 0) {
    self.shared.file = files[next];
    if (self.shared.file >= 0 && !map(&self.shared, PROT_READ)) release(&self.shared);
  }
  const bool is_shared = reply.from == elastic::worker::kSharedSlot;
  if (reply.step >= 0 && (is_shared || reply.from < kSlots) &&
      slot_of(static_cast<int>(reply.from)).bytes != nullptr) {
    self.step = reply.step;
    self.from = static_cast<int>(reply.from);
    if (!is_shared) self.newest = self.from;
    self.is_own = reply.is_own != 0;
    self.digest = reply.digest;
  }
  for (const Slot& slot : self.slots) {
    Header header;
    if (slot.bytes != nullptr && elastic::snapshot::read_header(slot.bytes, slot.size, &header) &&
        header.sequence > self.sequence) {
      self.sequence = header.sequence;
    }
  }
  return true;
}

// Makes a file of this size for the slot, which the guardian keeps in place of the earlier one.
bool make(int index, uint64_t size) {
  Slot* const slot = &self.slots[index];
  release(slot);
  // The limit counts for files of memory, and SIGXFSZ would end the process.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 && size > limit.rlim_cur) {
    return fail("the snapshot is larger than this process may make a file (ulimit -f)") != 0;
  }
  slot->file = ::memfd_create("elastic-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (slot->file < 0 || ::ftruncate(slot->file, static_cast<off_t>(size)) != 0 ||
      ::fcntl(slot->file, F_ADD_SEALS, kSeals) != 0 || !map(slot)) {
    release(slot);
    return fail("a file of memory cannot be made: %s", std::strerror(errno)) != 0;
  }
  SnapshotPacket reply;
  int none[kFilesMax];
  const bool is_answered =
      send_packet(
          {.kind = SnapshotKind::kOffer, .slot = static_cast<uint32_t>(index), .bytes = size},
          slot->file) &&
      receive_packet(&reply, none);
  if (is_answered && reply.kind == SnapshotKind::kAccepted) return true;
  release(slot);
  return fail("%s", is_answered ? reply.text : "the launcher's guardian does not answer") != 0;
}

// A page that cannot be made ends this thread's work, and not the process: the snapshot that needs
// it reports it.
void* touch(void* argument) {
  const Slot& slot = *static_cast<const Slot*>(argument);
  for (uint64_t at = 0; at < slot.size; at += kTouchedAtOnce) {
    if (__atomic_load_n(&self.must_stop, __ATOMIC_ACQUIRE) != 0) break;
    const uint64_t left = slot.size - at;
    const size_t piece = left < kTouchedAtOnce ? static_cast<size_t>(left) : kTouchedAtOnce;
    if (::madvise(slot.bytes + at, piece, kMadvPopulateWrite) != 0) break;
  }
  return nullptr;
}

void begin_touching(Slot* slot) {
  pthread_attr_t attributes;
  if (::pthread_attr_init(&attributes) != 0) return;
  ::pthread_attr_setstacksize(&attributes, kStackBytes);
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  self.must_stop = 0;
  self.is_touching = ::pthread_create(&self.thread, &attributes, touch, slot) == 0;
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  ::pthread_attr_destroy(&attributes);
}

uint64_t* word_at(const Slot& slot, uint64_t offset) {
  return reinterpret_cast<uint64_t*>(slot.bytes + offset);
}

uint64_t word_of(const Slot& slot, uint64_t offset) {
  return __atomic_load_n(word_at(slot, offset), __ATOMIC_SEQ_CST);
}

uint64_t sequence_of(const Slot& slot) { return word_of(slot, offsetof(Header, sequence)); }

// The guardian copies it to another node, or keeps it until a newer one is copied.
bool is_pinned(const Slot& slot) {
  const uint64_t pin = word_of(slot, elastic::snapshot::kPinOffset);
  return pin != 0 && pin == sequence_of(slot);
}

bool is_bad(const Slot& slot) {
  return self.has_saved && word_of(slot, elastic::snapshot::kVerdictOffset) == self.sequence;
}

// Whether the snapshot of this step is the first one behind the step that the guardian has given.
bool take_hold(int64_t step) {
  uint64_t hold = 0;
  for (const Slot& slot : self.slots) {
    const uint64_t found =
        slot.bytes == nullptr ? 0 : word_of(slot, elastic::snapshot::kHoldOffset);
    if (found > hold) hold = found;
  }
  if (hold == 0 || static_cast<uint64_t>(step) + 1 < hold) return false;
  for (const Slot& slot : self.slots) {
    if (slot.bytes == nullptr) continue;
    __atomic_store_n(word_at(slot, elastic::snapshot::kHoldOffset), 0, __ATOMIC_SEQ_CST);
  }
  return true;
}

// The one that is overwritten: the oldest snapshot that is not pinned; or the newest one if the
// guardian has found it to be bad, or if no other can be. A slot without a file where there is
// none. -1: all are pinned.
int choose_slot(bool may_make) {
  const bool has_newest = self.newest >= 0 && self.slots[self.newest].bytes != nullptr;
  if (has_newest && is_bad(self.slots[self.newest])) return self.newest;
  int oldest = -1;
  int empty = -1;
  for (int i = kSlots - 1; i >= 0; --i) {
    const Slot& slot = self.slots[i];
    if (slot.bytes == nullptr) {
      empty = i;
    } else if (i != self.newest && !is_pinned(slot) &&
               (oldest < 0 || sequence_of(slot) < sequence_of(self.slots[oldest]))) {
      oldest = i;
    }
  }
  if (oldest >= 0) return oldest;
  if (empty >= 0 && may_make) return empty;
  return has_newest && !is_pinned(self.slots[self.newest]) ? self.newest : -1;
}

// False: the guardian has pinned the snapshot meanwhile, which is as it was.
bool begin_writing(Slot* slot) {
  auto* const state = reinterpret_cast<uint32_t*>(slot->bytes + offsetof(Header, state));
  const uint32_t before =
      __atomic_exchange_n(state, static_cast<uint32_t>(State::kWriting), __ATOMIC_SEQ_CST);
  if (!is_pinned(*slot)) return true;
  __atomic_store_n(state, before, __ATOMIC_SEQ_CST);
  return false;
}

// A slot with a file of at least this size, which is no snapshot any more; -1: there is none.
int take_slot(uint64_t size) {
  bool may_make = true;
  for (int i = 0; i < 2 * kSlots; ++i) {
    const int index = choose_slot(may_make);
    if (index < 0) {
      if (may_make) fail("every snapshot is being copied to another node");
      return -1;
    }
    Slot* const slot = &self.slots[index];
    if (slot->bytes != nullptr && slot->size >= size) {
      if (begin_writing(slot)) return index;
      continue;
    }
    if (slot->bytes != nullptr && is_pinned(*slot)) continue;
    if (make(index, size)) return index;
    if (!may_make || self.newest < 0 || self.newest == index) return -1;
    may_make = false;  // there is no memory for a third one
  }
  fail("every snapshot is being copied to another node");
  return -1;
}

// The parts whose bytes are not in memory that could be copied.
struct Filler {
  elastic_snapshot_fill fill = nullptr;
  void* context = nullptr;
};

int save(int64_t step, const elastic_snapshot_part* parts, size_t count, uint16_t flags,
         const Filler& filler = {}) {
  self.error[0] = '\0';
  if (step < 0) return fail("the step is negative");
  if (!connect_to_guardian()) return 0;
  end_touching();
  if (self.has_saved) release(&self.shared);
  if (count > elastic::snapshot::kPartsMax) return fail("the state has too many parts");
  auto* const entries = static_cast<Entry*>(std::calloc(count + 1, sizeof(Entry)));
  if (entries == nullptr) return fail("out of memory");
  for (size_t i = 0; i < count; ++i) {
    entries[i].bytes = parts[i].bytes;
    entries[i].kind = static_cast<Kind>(parts[i].kind);
  }
  const uint64_t size = elastic::snapshot::lay_out(entries, count);
  const uint64_t room = elastic::snapshot::round_up(size, elastic::snapshot::kPage);
  const bool is_first_of_all = self.newest < 0;
  const int index = size == 0 ? -1 : take_slot(room);
  if (index < 0) {
    std::free(entries);
    return size == 0 ? fail("the state is too large") : 0;
  }
  Slot* const slot = &self.slots[index];
  Slot* other = nullptr;  // the second file is made together with the first
  int files = 0;
  for (Slot& one : self.slots) {
    if (one.bytes != nullptr) {
      ++files;
    } else if (other == nullptr) {
      other = &one;
    }
  }
  if (files == 1 && !make(static_cast<int>(other - self.slots), room)) {
    std::free(entries);
    release(slot);
    return 0;
  }
  const bool is_first = is_first_of_all && files == 1 && !self.has_saved;
  Header header;
  header.flags = flags;
  header.state = State::kWriting;
  header.sequence = ++self.sequence;
  header.step = step;
  header.world = self.world;
  header.rank = self.rank;
  header.parts = static_cast<uint32_t>(count);
  header.round = static_cast<uint32_t>(self.round);
  header.size = size;
  auto* const state = reinterpret_cast<uint32_t*>(slot->bytes + offsetof(Header, state));
  std::memcpy(slot->bytes, &header, sizeof header);
  std::memcpy(slot->bytes + elastic::snapshot::kPage, entries, count * sizeof(Entry));
  bool is_filled = true;
  for (size_t i = 0; is_filled && i < count; ++i) {
    if (entries[i].bytes == 0) continue;
    char* const memory = slot->bytes + entries[i].offset;
    if (parts[i].data == nullptr && filler.fill != nullptr) {
      is_filled = filler.fill(filler.context, i, memory) != 0;
    } else {
      std::memcpy(memory, parts[i].data, entries[i].bytes);
    }
  }
  std::free(entries);
  if (!is_filled) return fail("the state could not be copied");
  if (take_hold(step)) {
    __atomic_store_n(word_at(*slot, elastic::snapshot::kPinOffset), self.sequence,
                     __ATOMIC_SEQ_CST);
  }
  __atomic_store_n(state, static_cast<uint32_t>(State::kComplete), __ATOMIC_SEQ_CST);
  self.newest = index;
  self.has_saved = true;
  self.from = -1;
  send_packet(
      {.kind = SnapshotKind::kComplete, .slot = static_cast<uint32_t>(index), .step = step});
  if (is_first) begin_touching(other);
  return 1;
}

}  // namespace

extern "C" {

int elastic_snapshot_save(int64_t step, const elastic_snapshot_part* parts, size_t count) {
  return save(step, parts, count, 0);
}

int elastic_snapshot_save_replicated(int64_t step, const elastic_snapshot_part* parts,
                                     size_t count) {
  return save(step, parts, count, elastic::snapshot::kReplicated);
}

int elastic_snapshot_save_by(int64_t step, const elastic_snapshot_part* parts, size_t count,
                             int is_replicated, elastic_snapshot_fill fill, void* context) {
  return save(step, parts, count, is_replicated != 0 ? elastic::snapshot::kReplicated : uint16_t{0},
              {fill, context});
}

void elastic_snapshot_observe(elastic_snapshot_observer wanted) {
  observer = wanted;
  for (int i = 0; wanted != nullptr && i <= kSlots; ++i) {
    const Slot& slot = slot_of(i);
    if (slot.bytes != nullptr) wanted(slot.bytes, slot.size, 1);
  }
}

int elastic_snapshot_is_own(void) { return self.step >= 0 && self.is_own ? 1 : 0; }

int elastic_snapshot_restore(int64_t* step, const elastic_snapshot_part** parts, size_t* count) {
  self.error[0] = '\0';
  if (!connect_to_guardian() || self.from < 0 || self.has_saved) return 0;
  const Slot& slot = slot_of(self.from);
  Header header;
  const Entry* const entries =
      elastic::snapshot::open_snapshot(slot.bytes, slot.size, self.digest, &header);
  if (entries == nullptr || header.step != self.step) {
    send_packet({.kind = SnapshotKind::kDamaged, .slot = static_cast<uint32_t>(self.from)});
    self.from = -1;
    fail("the snapshot in memory was changed after it was saved, and is not used");
    return -1;
  }
  std::free(self.parts);
  self.parts = static_cast<elastic_snapshot_part*>(
      std::calloc(size_t{header.parts} + 1, sizeof(elastic_snapshot_part)));
  if (self.parts == nullptr) {
    fail("out of memory");
    return -1;
  }
  for (uint32_t i = 0; i < header.parts; ++i) {
    self.parts[i] = {slot.bytes + entries[i].offset, static_cast<size_t>(entries[i].bytes),
                     static_cast<int>(entries[i].kind)};
  }
  *step = self.step;
  *parts = self.parts;
  *count = header.parts;
  return 1;
}

const char* elastic_snapshot_error(void) { return self.error; }

}  // extern "C"
