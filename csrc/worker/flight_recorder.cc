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

// Theory of operation. torch records the collective operations of a process in a ring, also for
// gloo, and exports a function that returns it as JSON. A thread looks at the header of the reply
// every second, which takes some 30 microseconds, and more rarely while the process reports steps.
// Only when the header stays as it is, so that the process has entered no operation meanwhile, the
// thread reads the operations, once, and publishes them in the channel's memory.
//
// Gloo's operations are over when they are "retired"; NCCL's also when their state is "completed".
// The reader goes by keys, skips what it does not know, and takes numbers as strings, too: versions
// of torch differ in both.
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

constexpr int kGroupsMax = 32;
constexpr int kDepthMax = 16;
constexpr timespec kPause{1, 0};
constexpr int kPausesWithSteps = 4;  // from look to look while the process reports steps
constexpr int kLooksUnchanged = 2;   // before the operations are read
constexpr std::chrono::seconds kLookTakesAtMost{2};  // for the handlers, which go on after it

struct Group {
  char name[64];
  char description[64];
  uint64_t last;
  uint64_t open;
  int64_t created;
  char operation[48];
  char sizes[64];
};

struct Entry {
  Group group;
  uint64_t sequence = 0;
  bool is_over = false;
  bool is_point_to_point = false;
};

// A position in the text. Once it is not ok, every further step does nothing.
struct Cursor {
  const char* at;
  const char* end;
  bool ok = true;

  bool fail() {
    ok = false;
    return false;
  }
  void skip_space() {
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r')) ++at;
  }
  bool take(char byte) {
    skip_space();
    if (!ok || at >= end || *at != byte) return false;
    ++at;
    return true;
  }
  char next() {
    skip_space();
    return ok && at < end ? *at : '\0';
  }
};

bool is_plain(char byte) { return byte >= ' ' && byte <= '~'; }

// A string, cut at the size; other bytes than printable ones are replaced. Escapes are kept as they
// are written, but for their backslash.
bool read_string(Cursor* from, char* out, size_t size) {
  if (!from->take('"')) return from->fail();
  size_t length = 0;
  while (from->at < from->end && *from->at != '"') {
    if (*from->at == '\\' && ++from->at == from->end) break;
    const char byte = *from->at++;
    if (length + 1 < size) out[length++] = is_plain(byte) ? byte : '?';
  }
  if (size > 0) out[length] = '\0';
  return from->take('"') || from->fail();
}

bool skip_value(Cursor* from, int depth = 0) {
  if (depth > kDepthMax) return from->fail();
  const char first = from->next();
  if (first == '"') return read_string(from, nullptr, 0);
  if (first == '{' || first == '[') {
    const char last = first == '{' ? '}' : ']';
    ++from->at;
    if (from->take(last)) return true;
    do {
      if (first == '{' && (!read_string(from, nullptr, 0) || !from->take(':'))) {
        return from->fail();
      }
      if (!skip_value(from, depth + 1)) return false;
    } while (from->take(','));
    return from->take(last) || from->fail();
  }
  const char* const begin = from->at;
  while (from->at < from->end && std::strchr(",]} \n\t\r", *from->at) == nullptr) ++from->at;
  return from->at > begin || from->fail();
}

// The text of a value as it is written.
bool copy_value(Cursor* from, char* out, size_t size) {
  from->skip_space();
  const char* const begin = from->at;
  if (!skip_value(from)) return false;
  size_t length = 0;
  for (const char* byte = begin; byte < from->at && length + 1 < size; ++byte) {
    if (is_plain(*byte) && *byte != ' ' && *byte != '"') out[length++] = *byte;
  }
  out[length] = '\0';
  return true;
}

// A number, or one that is written as a string.
template <typename Number>
bool read_number(Cursor* from, Number* out) {
  char text[32];
  if (!copy_value(from, text, sizeof text)) return false;
  char* last = nullptr;
  const auto number = std::strtoull(text, &last, 10);
  if (last != text) *out = static_cast<Number>(number);
  return true;
}

// Calls on_key(key) at each value of an object, which consumes it.
template <typename OnKey>
bool read_object(Cursor* from, OnKey on_key) {
  if (!from->take('{')) return from->fail();
  if (from->take('}')) return true;
  do {
    char key[40];
    if (!read_string(from, key, sizeof key) || !from->take(':')) return from->fail();
    if (!on_key(key)) return from->fail();
  } while (from->take(','));
  return from->take('}') || from->fail();
}

template <typename OnItem>
bool read_array(Cursor* from, OnItem on_item) {
  if (!from->take('[')) return from->fail();
  if (from->take(']')) return true;
  do {
    if (!on_item()) return from->fail();
  } while (from->take(','));
  return from->take(']') || from->fail();
}

bool is_key(const char* key, const char* wanted) { return std::strcmp(key, wanted) == 0; }

// "gloo:all_reduce" -> "all_reduce"
void cut_backend(char* operation) {
  const char* const colon = std::strchr(operation, ':');
  if (colon != nullptr) std::memmove(operation, colon + 1, std::strlen(colon + 1) + 1);
}

// [name, description]
bool read_group(Cursor* from, Group* group) {
  int index = 0;
  return read_array(from, [&] {
    const int part = index++;
    if (part > 1 || from->next() != '"') return skip_value(from);
    return part == 0 ? read_string(from, group->name, sizeof group->name)
                     : read_string(from, group->description, sizeof group->description);
  });
}

bool read_entry(Cursor* from, Entry* entry) {
  return read_object(from, [&](const char* key) {
    if (is_key(key, "process_group") && from->next() == '[') return read_group(from, &entry->group);
    if (is_key(key, "collective_seq_id")) return read_number(from, &entry->sequence);
    if (is_key(key, "time_created_ns")) return read_number(from, &entry->group.created);
    if (is_key(key, "profiling_name") && from->next() == '"') {
      const bool is_read = read_string(from, entry->group.operation, sizeof entry->group.operation);
      cut_backend(entry->group.operation);
      return is_read;
    }
    if (is_key(key, "input_sizes")) {
      return copy_value(from, entry->group.sizes, sizeof entry->group.sizes);
    }
    const bool tells_end = is_key(key, "retired") || is_key(key, "state");
    const bool is_flag = tells_end || is_key(key, "is_p2p");
    if (!is_flag) return skip_value(from);
    char text[16];
    if (!copy_value(from, text, sizeof text)) return false;
    const bool is_set = is_key(text, "true") || is_key(text, "completed");
    if (tells_end) entry->is_over |= is_set;
    if (!tells_end) entry->is_point_to_point = is_set;
    return true;
  });
}

struct Groups {
  Group all[kGroupsMax];
  int count = 0;
};

void note(const Entry& entry, Groups* groups) {
  if (entry.is_point_to_point || entry.sequence == 0) return;
  int index = 0;
  while (index < groups->count && !is_key(groups->all[index].name, entry.group.name)) ++index;
  if (index == kGroupsMax) return;
  Group& group = groups->all[index];
  if (index == groups->count) {
    group = entry.group;
    group.last = group.open = 0;
    ++groups->count;
  }
  if (entry.sequence > group.last) group.last = entry.sequence;
  if (entry.is_over || (group.open != 0 && group.open <= entry.sequence)) return;
  const uint64_t last = group.last;
  group = entry.group;
  group.last = last;
  group.open = entry.sequence;
}

}  // namespace

namespace elastic::worker {

size_t condense(const char* json, size_t bytes, char* out, size_t size, int64_t* newest) {
  Groups groups;
  Cursor from{json, json + bytes};
  const bool is_read = read_object(&from, [&](const char* key) {
    if (!is_key(key, "entries") || from.next() != '[') return skip_value(&from);
    return read_array(&from, [&] {
      Entry entry{};
      if (!read_entry(&from, &entry)) return false;
      note(entry, &groups);
      return true;
    });
  });
  if (!is_read) return 0;
  size_t written = 0;
  for (int i = 0; i < groups.count; ++i) {
    const Group& group = groups.all[i];
    const bool is_newest = newest != nullptr && group.open != 0 && group.created > *newest;
    if (is_newest) *newest = group.created;
    char line[320];
    const int length = std::snprintf(
        line, sizeof line, "%s\t%s\t%llu\t%llu\t%lld\t%s\t%s\n", group.name, group.description,
        static_cast<unsigned long long>(group.last), static_cast<unsigned long long>(group.open),
        static_cast<long long>(group.created), group.operation, group.sizes);
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
  // registered while it was loaded.
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

int64_t now_of(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
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
    is_published_ = written > 0;
    if (is_published_) publish_collectives(page_, text, written);
    if (newest == 0) return;
    // An operation may be open for long while the process enters others.
    const int64_t age = now_of(CLOCK_REALTIME) - newest;
    const int64_t entered = age > 0 ? now - age : now;
    set_waits_since(entered > changed_after_ ? entered : changed_after_);
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
};

void* watch(void* page) {
  Watch watch(static_cast<elastic_worker_page*>(page));
  for (;;) {
    ::nanosleep(&kPause, nullptr);
    watch.look();
  }
  return nullptr;
}

bool start_thread(elastic_worker_page* page) {
  process = ::getpid();
  if (::pthread_atfork(before_fork, after_fork, after_fork) != 0) return false;
  sigset_t all, before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  const bool is_started = ::pthread_create(&thread, nullptr, watch, page) == 0;
  if (is_started) ::pthread_detach(thread);
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return is_started;
}

}  // namespace

namespace elastic::worker {

bool watch_collectives(elastic_worker_page* page, const char* members, void (*announce)()) {
  static std::mutex calls;
  static bool is_watching = false;
  const std::lock_guard lock(calls);
  if (page->magic != ELASTIC_WORKER_MAGIC) return false;
  publish(page, ELASTIC_WORKER_GROUPS_OFFSET, ELASTIC_WORKER_GROUPS_BYTES, &page->groups_sequence,
          members, strnlen(members, ELASTIC_WORKER_GROUPS_BYTES - 1));
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
