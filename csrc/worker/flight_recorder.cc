#include "worker/flight_recorder.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>

#include "core/hang/signature.h"
#include "worker/collective_blocks.h"
#include "worker/recorder_reply.h"

// Theory of operation. torch records the collective operations of a process in a ring, also for
// gloo, and exports a function that returns it as JSON. A thread looks at the header of the reply
// every second, which takes some 30 microseconds, and more rarely while the process reports steps.
// Only when the header stays as it is, so that the process has entered no operation meanwhile, the
// thread reads the operations, once, and publishes them in the channel's memory.
//
// What a job does while its ranks make progress is sampled: at the same second of the wall clock on
// every host, so that the ranks read the same operations, each thread reads the recorder and
// publishes the signatures of a few blocks (worker/collective_blocks.h). A full recorder takes some
// 60 ms of this thread, so the pause from read to read is a multiple of the shortest one that
// depends on the time of the last read: a power of two, so that all ranks meet at the multiples of
// the longest pause.
//
// The thread is a guest in torch's library. While the process exits, the destructors of that
// library take away the strings that the function uses: a handler that runs before them ends the
// looks. A fork waits for the end of a look, whose lock in torch the child would never get. And the
// function throws where a name is not UTF-8, such as a thread's that the system has cut.
//
// Weak point: the function reads the list of the process groups without torch's lock, so that a
// look and the forming of a group must not meet. The thread keeps away while groups are being
// formed, and a look takes microseconds, but nothing excludes it.

namespace {

using elastic::hang::kSampleSeconds;
using elastic::worker::common_tensors;
using elastic::worker::CommonTensors;
using elastic::worker::Operation;

constexpr int kGroupsMax = 32;
constexpr int64_t kSecond = 1'000'000'000;
constexpr int kPausesWithSteps = 4;  // from look to look while the process reports steps
constexpr int kLooksUnchanged = 2;   // before the operations are read
constexpr std::chrono::seconds kLookTakesAtMost{2};  // for the handlers, which continue after it
// A sample takes at most this part of the time of a core, unless the longest pause is too short.
constexpr int64_t kPausePerSample = 2000;
constexpr int64_t kPausesMax = 64;

struct Group {
  Operation operation;  // the first open one; of a group without any, the last one
  uint64_t last;
  uint64_t open;
};

struct Groups {
  Group all[kGroupsMax];
  int count = 0;
};

void note(const Operation& operation, Groups* groups) {
  if (operation.is_point_to_point || operation.sequence == 0) return;
  int index = 0;
  while (index < groups->count &&
         std::strcmp(groups->all[index].operation.group, operation.group) != 0) {
    ++index;
  }
  if (index == kGroupsMax) return;
  Group& group = groups->all[index];
  if (index == groups->count) {
    group = {operation, 0, 0};
    ++groups->count;
  }
  if (operation.sequence > group.last) {
    group.last = operation.sequence;
    if (group.open == 0) group.operation = operation;
  }
  if (operation.is_over || (group.open != 0 && group.open <= operation.sequence)) return;
  group.operation = operation;
  group.open = operation.sequence;
}

// "[Float,Float]" -> "Float"; of different types all.
void write_type(const char* types, char* out, size_t size) {
  const size_t bytes = std::strcspn(types + 1, ",]");
  bool are_equal = true;
  for (const char* at = types + 1 + bytes; *at == ','; at += 1 + bytes) {
    const size_t left = std::strlen(at + 1);  // the list may be cut
    are_equal &= std::strncmp(at + 1, types + 1, left < bytes ? left : bytes) == 0;
    if (!are_equal || left <= bytes) break;
  }
  const int length = static_cast<int>(are_equal ? bytes : std::strcspn(types + 1, "]"));
  std::snprintf(out, size, "%.*s", length, types + 1);
}

// What a person reads of the sizes: those of the inputs, or what all ranks must have in common,
// with its type (CollectiveState::sizes).
void write_sizes(const Operation& operation, char* out, size_t size) {
  const CommonTensors common = common_tensors(operation);
  std::snprintf(out, size, "%s", operation.sizes);
  if (common.kind == nullptr || operation.types[0] != '[') return;
  char type[sizeof operation.types];
  write_type(operation.types, type, sizeof type);
  const size_t length = std::strlen(operation.sizes);
  const bool is_shape = common.tensors == &operation.inputs && common.tensors->count == 1 &&
                        operation.sizes[length - 1] == ']' && length + 1 + std::strlen(type) < size;
  if (is_shape) {
    std::snprintf(out, size, "%s %s", operation.sizes, type);
  } else {
    std::snprintf(out, size, "%llu elements %s",
                  static_cast<unsigned long long>(common.tensors->elements), type);
  }
}

}  // namespace

namespace elastic::worker {

size_t condense(const char* json, size_t bytes, char* out, size_t size, int64_t* newest) {
  Groups groups;
  const bool is_read = for_each_operation(
      json, bytes, [&](const Operation& operation) { note(operation, &groups); });
  if (!is_read) return 0;
  size_t written = 0;
  for (int i = 0; i < groups.count; ++i) {
    const Group& group = groups.all[i];
    const Operation& one = group.operation;
    const bool is_newest = newest != nullptr && group.open != 0 && one.created > *newest;
    if (is_newest) *newest = one.created;
    char sizes[sizeof one.sizes];
    write_sizes(one, sizes, sizeof sizes);
    char line[320];
    const int length = std::snprintf(
        line, sizeof line, "%s\t%s\t%llu\t%llu\t%lld\t%s\t%s\n", one.group, one.description,
        static_cast<unsigned long long>(group.last), static_cast<unsigned long long>(group.open),
        static_cast<long long>(one.created), one.name, sizes);
    if (length <= 0 || static_cast<size_t>(length) >= sizeof line ||
        written + static_cast<size_t>(length) > size) {
      break;
    }
    std::memcpy(out + written, line, static_cast<size_t>(length));
    written += static_cast<size_t>(length);
  }
  return written;
}

}  // namespace elastic::worker

namespace {

// What libstdc++'s std::string is: the function returns one through a hidden pointer.
struct StringOfTorch {
  char* data;
  size_t size;
  char local[16];
};
using Dump = StringOfTorch* (*)(StringOfTorch*, bool includes_collectives, bool only_active);

// dump_fr_trace_json(bool, bool) and dump_nccl_trace_json(bool, bool) of namespace c10d, and the
// libraries that export them. Python loads these without making their symbols global.
struct Source {
  const char* library;
  const char* symbol;
};
constexpr Source kSources[] = {
    {"libtorch_cpu.so", "_ZN4c10d18dump_fr_trace_jsonB5cxx11Ebb"},
    {"libtorch_cuda.so", "_ZN4c10d20dump_nccl_trace_jsonB5cxx11Ebb"},
};
constexpr int kRecorders = 2;

struct Recorder {
  bool is_loaded = false;  // the library was found
  Dump dump = nullptr;
  void (*release)(void*) = nullptr;  // operator delete of the library's runtime
  uint64_t header = 0;               // of the last look
};

// Held during a look.
std::timed_mutex looking;
bool is_exiting = false;              // with the lock
thread_local bool is_locked = false;  // by this thread, which forks
pid_t process = 0;                    // that has the thread; not a forked child
bool is_switched_off = false;         // by a variable

void end_looks() {
  if (::getpid() != process || !looking.try_lock_for(kLookTakesAtMost)) return;
  is_exiting = true;
  looking.unlock();
}

void before_fork() { is_locked = looking.try_lock_for(kLookTakesAtMost); }
void after_fork() {
  if (is_locked) looking.unlock();
  is_locked = false;
}

// Has no effect while the library is not loaded.
void find(const Source& source, Recorder* recorder) {
  if (recorder->is_loaded) return;
  void* const library = ::dlopen(source.library, RTLD_LAZY | RTLD_NOLOAD);
  if (library == nullptr) return;
  recorder->is_loaded = true;  // it stays loaded: the handle is kept
  // Handlers run in the reverse order: this one before the destructors that the library has
  // registered while it was loaded, which may be after the thread's start.
  if (std::atexit(end_looks) != 0) return;
  recorder->release = reinterpret_cast<void (*)(void*)>(::dlsym(library, "_ZdlPv"));
  if (recorder->release == nullptr) return;
  recorder->dump = reinterpret_cast<Dump>(::dlsym(library, source.symbol));
}

uint64_t hash(const char* text, size_t bytes) {
  uint64_t value = 0xcbf29ce484222325;
  for (size_t i = 0; i < bytes; ++i) {
    value = (value ^ static_cast<unsigned char>(text[i])) * 0x100000001b3;
  }
  return value;
}

// Has no effect where the process exits, or where torch cannot write the reply.
template <typename Use>
void with_reply(const Recorder& recorder, bool includes_collectives, Use use) {
  const std::lock_guard lock(looking);
  if (is_exiting || recorder.dump == nullptr) return;
  StringOfTorch reply{};
  try {
    recorder.dump(&reply, includes_collectives, false);
  } catch (...) {
    return;
  }
  use(reply.data, reply.size);
  if (reply.data != reply.local) recorder.release(reply.data);
}

// Writes into an area of the page's memory.
void publish(elastic_worker_page* page, size_t offset, size_t size, uint32_t* sequence,
             const char* text, size_t bytes) {
  char* const area = reinterpret_cast<char*>(page) + offset;
  const uint32_t odd = *sequence | 1U;
  __atomic_store_n(sequence, odd, __ATOMIC_SEQ_CST);
  std::memset(area, 0, size);
  std::memcpy(area, text, bytes);
  __atomic_store_n(sequence, odd + 1, __ATOMIC_SEQ_CST);
}

void publish_collectives(elastic_worker_page* page, const char* text, size_t bytes) {
  publish(page, ELASTIC_WORKER_COLLECTIVES_OFFSET, ELASTIC_WORKER_COLLECTIVES_BYTES,
          &page->collectives_sequence, text, bytes);
}

// torch reads them before the first group is formed, as this thread is started.
bool has_no_buffer() {
  for (const char* const name : {"TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"}) {
    const char* const size = std::getenv(name);
    if (size != nullptr) return std::strcmp(size, "0") == 0;
  }
  return false;
}

int64_t now_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * kSecond + now.tv_nsec;
}

class Watch {
 public:
  explicit Watch(elastic_worker_page* page) : page_(page) {}

  // After each pause.
  void look() {
    const auto groups = __atomic_load_n(&page_->groups_sequence, __ATOMIC_RELAXED);
    const auto step = __atomic_load_n(&page_->step, __ATOMIC_RELAXED);
    const bool forms_groups = groups != groups_;
    const bool steps = step != step_;
    groups_ = groups;
    step_ = step;
    if (!forms_groups) sample(now_of(CLOCK_REALTIME) / kSecond / kSampleSeconds);
    pauses_ = steps || forms_groups ? pauses_ + 1 : kPausesWithSteps;
    if (forms_groups || pauses_ < kPausesWithSteps) return;
    pauses_ = 0;
    const int64_t now = now_of(CLOCK_MONOTONIC);
    if (header_has_changed()) {
      withdraw();
      unchanged_ = 0;
      changed_after_ = looked_;
    } else if (++unchanged_ == kLooksUnchanged) {
      read(now);
    }
    looked_ = now;
  }

 private:
  // `sample`: the number of the sample, the same on all hosts.
  void sample(int64_t sample) {
    if (sample == sample_ || sample % sample_pauses_ != 0) return;
    sample_ = sample;
    // Not NCCL's: that queries events of the device, which ends the capture of a CUDA graph.
    Recorder& gloo = recorders_[0];
    find(kSources[0], &gloo);
    uint64_t header = 0;
    with_reply(gloo, false, [&](const char* reply, size_t bytes) { header = hash(reply, bytes); });
    if (header == sampled_header_) return;  // no operation was entered or has ended since
    sampled_header_ = header;
    static char text[ELASTIC_WORKER_SIGNATURES_BYTES];
    const int64_t began = now_of(CLOCK_THREAD_CPUTIME_ID);
    size_t written = 0;
    with_reply(gloo, true, [&](const char* reply, size_t bytes) {
      written = elastic::worker::sign_blocks(reply, bytes, {sample, 0}, text, sizeof text - 1);
    });
    const int64_t took = now_of(CLOCK_THREAD_CPUTIME_ID) - began;
    sample_pauses_ = 1;
    while (sample_pauses_ < kPausesMax &&
           sample_pauses_ * kSampleSeconds * kSecond < took * kPausePerSample) {
      sample_pauses_ *= 2;
    }
    if (written == 0) return;
    publish(page_, ELASTIC_WORKER_SIGNATURES_OFFSET, ELASTIC_WORKER_SIGNATURES_BYTES,
            &page_->signatures_sequence, text, written);
  }

  bool header_has_changed() {
    bool has_changed = false;
    for (int i = 0; i < kRecorders; ++i) {
      Recorder& one = recorders_[i];
      find(kSources[i], &one);
      with_reply(one, false, [&](const char* reply, size_t bytes) {
        const uint64_t header = hash(reply, bytes);
        has_changed |= header != one.header;
        one.header = header;
      });
    }
    return has_changed;
  }

  void read(int64_t now) {
    static char text[ELASTIC_WORKER_COLLECTIVES_BYTES];
    size_t written = 0;
    int64_t newest = 0;
    for (const Recorder& one : recorders_) {
      with_reply(one, true, [&](const char* reply, size_t bytes) {
        written += elastic::worker::condense(reply, bytes, text + written,
                                             sizeof text - 1 - written, &newest);
      });
    }
    if (written == 0) written = write_blindness(text);
    is_published_ = written > 0;
    if (is_published_) publish_collectives(page_, text, written);
    if (newest == 0) return;
    // An operation may be open for long while the process enters others.
    const int64_t age = now_of(CLOCK_REALTIME) - newest;
    const int64_t entered = age > 0 ? now - age : now;
    set_waits_since(entered > changed_after_ ? entered : changed_after_);
  }

  // Why nothing is seen of this process's operations, as a line of a group without a name.
  size_t write_blindness(char* out) const {
    const bool can_read = recorders_[0].dump != nullptr || recorders_[1].dump != nullptr;
    if (can_read && !is_switched_off) return 0;
    const char* const why = can_read ? elastic::hang::kRecorderOff : elastic::hang::kNoRecorder;
    return static_cast<size_t>(std::sprintf(out, "\t\t0\t0\t0\t%s\t\n", why));
  }

  void set_waits_since(int64_t since) {
    __atomic_store_n(&page_->waits_since, since, __ATOMIC_SEQ_CST);
  }

  void withdraw() {
    if (!is_published_) return;
    set_waits_since(0);
    publish_collectives(page_, "", 0);
    is_published_ = false;
  }

  elastic_worker_page* const page_;
  Recorder recorders_[kRecorders];
  uint32_t groups_ = 0;
  int64_t step_ = ELASTIC_WORKER_NO_STEP;
  int pauses_ = 0;     // since the last look
  int unchanged_ = 0;  // looks that found the same header
  bool is_published_ = false;
  int64_t looked_ = 0;
  int64_t changed_after_ = 0;  // the look before the last change of the header
  int64_t sample_ = 0;         // the last one
  uint64_t sampled_header_ = 0;
  int64_t sample_pauses_ = 1;  // from sample to sample, in units of the shortest pause
};

void* watch(void* page) {
  Watch watch(static_cast<elastic_worker_page*>(page));
  for (;;) {
    // To the next full second, as on every host.
    const int64_t left = kSecond - now_of(CLOCK_REALTIME) % kSecond;
    const timespec pause{left / kSecond, left % kSecond};
    ::nanosleep(&pause, nullptr);
    watch.look();
  }
  return nullptr;
}

bool start_thread(elastic_worker_page* page) {
  process = ::getpid();
  is_switched_off = has_no_buffer();
  // As in find(). The process may exit before the first look, which would find the library when it
  // has been destroyed.
  if (std::atexit(end_looks) != 0) return false;
  if (::pthread_atfork(before_fork, after_fork, after_fork) != 0) return false;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool is_started = ::pthread_create(&thread, nullptr, watch, page) == 0;
  if (is_started) ::pthread_setname_np(thread, "elastic-watch");
  if (is_started) ::pthread_detach(thread);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return is_started;
}

}  // namespace

namespace elastic::worker {

size_t whole_lines(const char* text, size_t size) {
  size_t length = strnlen(text, size);
  if (length < size) return length;
  while (length > 0 && (length == size || text[length - 1] != '\n')) --length;
  return length;
}

bool watch_collectives(elastic_worker_page* page, const char* members, void (*announce)()) {
  static std::mutex calls;
  static bool is_watching = false;
  const std::lock_guard lock(calls);
  if (page->magic != ELASTIC_WORKER_MAGIC) return false;
  publish(page, ELASTIC_WORKER_GROUPS_OFFSET, ELASTIC_WORKER_GROUPS_BYTES, &page->groups_sequence,
          members, whole_lines(members, ELASTIC_WORKER_GROUPS_BYTES));
  if (is_watching) return true;
  is_watching = start_thread(page);
  if (is_watching && announce != nullptr) announce();
  return is_watching;
}

}  // namespace elastic::worker

int elastic_worker_watch_collectives(const char* members) {
  return elastic::worker::watch_collectives(elastic_worker_page_in_use, members,
                                            elastic_worker_announce_watch)
             ? 1
             : 0;
}
