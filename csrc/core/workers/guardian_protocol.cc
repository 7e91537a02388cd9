#include "core/workers/guardian_protocol.h"

#include <utility>

#include "core/base/byte_io.h"
#include "core/base/variant_index.h"

// Theory of operation. One list of fields for each message serves both directions: Writer appends
// the fields, Reader assigns them in the same order. The first byte of a message is its place in
// the variant, from 1. A field that is short, exceeds its limit or lacks its NUL makes the message
// invalid, and so do bytes after the last field.

namespace elastic::guardian {
namespace {

using core::append_integer;

constexpr std::size_t kFlagCount = 2;
constexpr std::size_t kSignalScopeCount = 2;

// Makes the bytes that are appended during its lifetime a frame.
class Frame {
 public:
  Frame(std::string* out, std::size_t index) : out_(out), start_(out->size()) {
    append_integer(out, std::uint32_t{0});
    append_integer(out, static_cast<std::uint8_t>(index + 1));
  }
  Frame(const Frame&) = delete;
  Frame& operator=(const Frame&) = delete;
  ~Frame() {
    const auto bytes = static_cast<std::uint32_t>(out_->size() - start_ - kFrameHeaderBytes);
    core::store_integer(out_, start_, bytes);
  }

 private:
  std::string* out_;
  std::size_t start_;
};

class Writer {
 public:
  explicit Writer(std::string* out) : out_(out) {}

  template <typename Integer>
  void number(Integer value) {
    append_integer(out_, value);
  }
  template <typename Enum>
  void choice(Enum value, std::size_t) {
    append_integer(out_, static_cast<std::uint8_t>(value));
  }
  void flag(bool value) { choice(value, kFlagCount); }
  void duration(Duration value) { append_integer(out_, value.count()); }
  void instant(Instant value) { duration(value.time_since_epoch()); }
  void text(std::string_view value) {
    append_integer(out_, static_cast<std::uint32_t>(value.size()));
    out_->append(value);
    out_->push_back('\0');
  }
  void list(const std::vector<std::string_view>& items) {
    append_integer(out_, static_cast<std::uint32_t>(items.size()));
    for (const std::string_view item : items) text(item);
  }
  void numbers(const std::vector<std::uint32_t>& values, std::size_t, std::uint32_t) {
    append_integer(out_, static_cast<std::uint32_t>(values.size()));
    for (const std::uint32_t value : values) append_integer(out_, value);
  }

 private:
  std::string* out_;
};

class Reader {
 public:
  explicit Reader(std::string_view bytes) : reader_(bytes) {}

  template <typename Integer>
  void number(Integer& value) {
    value = reader_.integer<Integer>();
  }

  // A violation unless it is below `count`.
  template <typename Enum>
  void choice(Enum& value, std::size_t count) {
    const auto found = reader_.integer<std::uint8_t>();
    if (found >= count) reader_.fail();
    value = static_cast<Enum>(reader_.ok() ? found : 0);
  }
  void flag(bool& value) { choice(value, kFlagCount); }
  void duration(Duration& value) { value = Duration(reader_.integer<Duration::rep>()); }
  void instant(Instant& value) { value = Instant(Duration(reader_.integer<Duration::rep>())); }

  void text(std::string_view& value) {
    const auto length = reader_.integer<std::uint32_t>();
    const std::string_view bytes = reader_.take(std::size_t{length} + 1);
    const bool is_text = reader_.ok() && bytes.find('\0') == length;
    if (!is_text) reader_.fail();
    value = is_text ? bytes.substr(0, length) : "";
  }

  // An item takes at least five bytes, so a count that exceeds the frame allocates no memory.
  void list(std::vector<std::string_view>& items) {
    const auto count = reader_.integer<std::uint32_t>();
    if (count > kListItemsMax || count > reader_.left() / (sizeof count + 1)) reader_.fail();
    if (reader_.ok()) items.reserve(count);
    for (std::uint32_t i = 0; reader_.ok() && i < count; ++i) text(items.emplace_back());
  }

  // At most `most` numbers, each below `limit`.
  void numbers(std::vector<std::uint32_t>& values, std::size_t most, std::uint32_t limit) {
    const auto count = reader_.integer<std::uint32_t>();
    if (count > most || count > reader_.left() / sizeof count) reader_.fail();
    if (reader_.ok()) values.reserve(count);
    for (std::uint32_t i = 0; reader_.ok() && i < count; ++i) {
      values.push_back(reader_.integer<std::uint32_t>());
      if (values.back() >= limit) reader_.fail();
    }
  }

  bool complete() const { return reader_.ok() && reader_.at_end(); }

 private:
  core::ByteReader reader_;
};

// ---- Requests.

template <typename Visitor>
void fields(Visitor& v, StartRequest& request) {
  v.number(request.id);
  v.choice(request.kind, kStartKindCount);
  v.choice(request.lifetime, kLifetimeCount);
  v.number(request.passed);
  v.duration(request.template_wait);
  v.flag(request.has_channel);
  v.list(request.argv);
  v.list(request.env);
  v.text(request.cwd);
  v.text(request.stdout_path);
  v.text(request.stderr_path);
  v.numbers(request.cpus, kCpusMax, kCpusMax);
}

template <typename Visitor>
void fields(Visitor& v, SignalRequest& request) {
  v.number(request.signal);
  v.choice(request.scope, kSignalScopeCount);
  v.flag(request.is_stop);
  v.number(request.id);
}

template <typename Visitor>
void fields(Visitor&, CancelStartsRequest&) {}

template <typename Visitor>
void fields(Visitor& v, SweepRequest& request) {
  v.flag(request.reports_leftovers);
}

template <typename Visitor>
void fields(Visitor&, AwaitLeftoversRequest&) {}

template <typename Visitor>
void fields(Visitor& v, WatchRequest& request) {
  v.duration(request.interval);
}

template <typename Visitor>
void fields(Visitor& v, StacksRequest& request) {
  v.duration(request.limit);
}

template <typename Visitor>
void fields(Visitor& v, drain::StopStepRequest& request) {
  v.choice(request.kind, drain::kOrderKinds);
  v.number(request.proposal);
  v.number(request.step);
  v.flag(request.reports_waiting);
}

template <typename Visitor>
void fields(Visitor& v, CutRequest& request) {
  v.number(request.round);
}

template <typename Visitor>
void fields(Visitor& v, ContinueRequest& request) {
  v.number(request.id);
  v.number(request.round);
  v.list(request.env);
}

// ---- Events.

template <typename Visitor>
void fields(Visitor& v, HelloEvent& event) {
  v.number(event.version);
}

template <typename Visitor>
void fields(Visitor& v, StartedEvent& event) {
  v.number(event.id);
  v.number(event.pid);
  v.instant(event.at);
}

template <typename Visitor>
void fields(Visitor& v, NotStartedEvent& event) {
  v.number(event.id);
  v.choice(event.stage, kStageCount);
  v.number(event.error);
  v.flag(event.timed_out);
  v.flag(event.stopped);
  v.instant(event.at);
  v.text(event.path);
}

template <typename Visitor>
void fields(Visitor& v, ExitedEvent& event) {
  v.number(event.id);
  v.choice(event.cause, kExitCauseCount);
  v.number(event.value);
  v.flag(event.stopped);
  v.flag(event.killed);
  v.instant(event.at);
  v.number(event.stop_step);
  v.number(event.last_step);
}

template <typename Visitor>
void fields(Visitor& v, KillSentEvent& event) {
  v.number(event.refused_pid);
  v.flag(event.found_all);
}

template <typename Visitor>
void fields(Visitor&, SweptEvent&) {}

template <typename Visitor>
void fields(Visitor& v, LeftoverEvent& event) {
  v.flag(event.is_awaited);
  v.number(event.count);
  v.number(event.pid);
  v.text(event.command);
}

template <typename Visitor>
void fields(Visitor& v, TemplateEvent& event) {
  v.choice(event.news, kTemplateNewsCount);
  v.number(event.id);
  v.instant(event.at);
  v.text(event.text);
}

template <typename Visitor>
void fields(Visitor& v, ProgressEvent& event) {
  v.number(event.reporting);
  v.number(event.newest);
  v.number(event.oldest);
  v.number(event.slowest);
  v.duration(event.slowest_idle);
  v.duration(event.idle);
  v.duration(event.section_limit);
}

template <typename Visitor>
void fields(Visitor& v, StacksEvent& event) {
  v.number(event.id);
  v.number(event.step);
  v.number(event.state);
  v.text(event.wait_channel);
  v.text(event.text);
}

template <typename Visitor>
void fields(Visitor&, StacksDoneEvent&) {}

template <typename Visitor>
void fields(Visitor& v, drain::StopStepEvent& event) {
  v.choice(event.kind, drain::kReplyKinds);
  v.number(event.proposal);
  v.numbers(event.reporting, kListItemsMax, kTemplateId);
  v.number(event.newest);
  v.number(event.oldest);
  v.number(event.stopped);
  v.number(event.first_stop);
  v.number(event.last_stop);
}

template <typename Visitor>
void fields(Visitor& v, MarkEvent& event) {
  v.number(event.id);
  v.choice(event.mark, kMarkCount);
  v.instant(event.at);
  v.number(event.step);
}

// ---- All messages.

template <typename Messages>
void append(std::string* out, Messages& message) {
  const Frame frame(out, message.index());
  Writer writer(out);
  std::visit([&](auto& one) { fields(writer, one); }, message);
}

template <typename Messages>
bool decode(std::string_view payload, Messages* message) {
  Reader reader(payload);
  std::uint8_t code = 0;
  reader.number(code);
  if (code == 0 || code > std::variant_size_v<Messages>) return false;
  *message = core::alternative_of<Messages>(code - std::size_t{1});
  std::visit([&](auto& one) { fields(reader, one); }, *message);
  return reader.complete();
}

}  // namespace

const char* to_string(Stage stage) {
  switch (stage) {
    case Stage::kPipe: return "pipe";
    case Stage::kFork: return "fork";
    case Stage::kOpen: return "open";
    case Stage::kChdir: return "chdir";
    case Stage::kExec: return "exec";
    case Stage::kInterpreter: return "exec interpreter of";
    case Stage::kAffinity: return "set the CPU affinity of";
  }
  return "start";
}

void append_start(std::string* out, std::uint32_t id, const WorkerCommand& command,
                  Lifetime lifetime, std::uint8_t passed, StartKind kind, Duration template_wait) {
  append_request(out, StartRequest{.id = id,
                                   .kind = kind,
                                   .lifetime = lifetime,
                                   .passed = passed,
                                   .template_wait = template_wait,
                                   .has_channel = command.has_channel,
                                   .argv = {command.argv.begin(), command.argv.end()},
                                   .env = {command.env.begin(), command.env.end()},
                                   .cwd = command.cwd,
                                   .stdout_path = command.stdout_path,
                                   .stderr_path = command.stderr_path,
                                   .cpus = command.cpus});
}

void append_request(std::string* out, Request request) { append(out, request); }

void append_event(std::string* out, Event event) { append(out, event); }

bool contains_nul(const WorkerCommand& command) {
  const auto has_nul = [](const std::string& text) { return text.find('\0') != text.npos; };
  for (const std::string& item : command.argv) {
    if (has_nul(item)) return true;
  }
  for (const std::string& item : command.env) {
    if (has_nul(item)) return true;
  }
  return has_nul(command.cwd) || has_nul(command.stdout_path) || has_nul(command.stderr_path);
}

void FrameBuffer::append(std::string_view bytes) {
  bytes_.erase(0, consumed_);
  consumed_ = 0;
  bytes_.append(bytes);
}

FrameStatus FrameBuffer::next(std::string_view* payload) {
  const std::string_view rest = std::string_view(bytes_).substr(consumed_);
  if (rest.size() < kFrameHeaderBytes) return FrameStatus::kNeedMore;
  const auto length = core::load_integer<std::uint32_t>(rest.data());
  if (length == 0 || length > kFrameBytesMax) return FrameStatus::kViolation;
  if (rest.size() - kFrameHeaderBytes < length) return FrameStatus::kNeedMore;
  *payload = rest.substr(kFrameHeaderBytes, length);
  consumed_ += kFrameHeaderBytes + length;
  return FrameStatus::kFrame;
}

bool decode_request(std::string_view payload, Request* request) {
  if (!decode(payload, request)) return false;
  const auto* start = std::get_if<StartRequest>(request);
  if (start == nullptr) return true;
  const bool has_program = !start->argv.empty() && !start->argv[0].empty();
  return has_program && start->id != kEveryWorker;
}

bool decode_event(std::string_view payload, Event* event) { return decode(payload, event); }

}  // namespace elastic::guardian
