#include "core/workers/guardian_protocol.h"

#include <utility>

#include "core/base/byte_io.h"

// Theory of operation. One list of fields per message, written and read in the same order. append_*
// writes a placeholder for the length, then the payload, and fills in the length. A Reader reads
// the fields in turn; a field that is short, exceeds its limit or lacks its NUL makes the message
// invalid, and so do bytes after the last field.

namespace elastic::guardian {
namespace {

using core::append_integer;

enum class RequestCode : std::uint8_t {
  kStart = 1,
  kSignal,
  kCancelStarts,
  kSweep,
  kWatch,
  kStacks,
  kStopStep
};
enum class EventCode : std::uint8_t {
  kHello = 1,
  kStarted,
  kNotStarted,
  kExited,
  kKillSent,
  kSwept,
  kTemplate,
  kProgress,
  kStacks,
  kStacksDone,
  kStopStep,
  kMark
};

void put_bytes(std::string* out, std::string_view bytes) {
  append_integer(out, static_cast<std::uint32_t>(bytes.size()));
  out->append(bytes);
  out->push_back('\0');
}

void put_list(std::string* out, const std::vector<std::string>& items) {
  append_integer(out, static_cast<std::uint32_t>(items.size()));
  for (const std::string& item : items) put_bytes(out, item);
}

void put_numbers(std::string* out, const std::vector<std::uint32_t>& numbers) {
  append_integer(out, static_cast<std::uint32_t>(numbers.size()));
  for (const std::uint32_t number : numbers) append_integer(out, number);
}

void put_instant(std::string* out, Instant at) {
  append_integer(out, at.time_since_epoch().count());
}

// Makes the bytes that are appended during its lifetime a frame.
class Frame {
 public:
  template <typename Code>
  Frame(std::string* out, Code code) : out_(out), start_(out->size()) {
    append_integer(out, std::uint32_t{0});
    append_integer(out, code);
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

class Reader {
 public:
  explicit Reader(std::string_view bytes) : reader_(bytes) {}

  template <typename Integer>
  Integer number() {
    return reader_.integer<Integer>();
  }

  // An enumerator, or a violation when it is not below `count`.
  template <typename Enum>
  Enum one_of(std::size_t count) {
    const auto value = number<std::uint8_t>();
    if (value >= count) reader_.fail();
    return static_cast<Enum>(reader_.ok() ? value : 0);
  }

  Duration duration() { return Duration(number<Duration::rep>()); }
  Instant instant() { return Instant(Duration(number<Duration::rep>())); }

  std::string_view string() {
    const auto length = number<std::uint32_t>();
    const std::string_view bytes = reader_.take(std::size_t{length} + 1);
    const bool is_text = reader_.ok() && bytes.find('\0') == length;
    if (!is_text) reader_.fail();
    return is_text ? bytes.substr(0, length) : "";
  }

  // An item takes at least five bytes, so a count that exceeds the frame allocates no memory.
  std::vector<std::string_view> list() {
    const auto count = number<std::uint32_t>();
    std::vector<std::string_view> items;
    if (count > kListItemsMax || count > reader_.left() / (sizeof count + 1)) reader_.fail();
    if (reader_.ok()) items.reserve(count);
    for (std::uint32_t i = 0; reader_.ok() && i < count; ++i) items.push_back(string());
    return items;
  }

  // At most `most` numbers, each below `limit`.
  std::vector<std::uint32_t> numbers(std::size_t most, std::uint32_t limit) {
    const auto count = number<std::uint32_t>();
    std::vector<std::uint32_t> found;
    if (count > most || count > reader_.left() / sizeof count) reader_.fail();
    if (reader_.ok()) found.reserve(count);
    for (std::uint32_t i = 0; reader_.ok() && i < count; ++i) {
      found.push_back(number<std::uint32_t>());
      if (found.back() >= limit) reader_.fail();
    }
    return found;
  }

  bool complete() const { return reader_.ok() && reader_.at_end(); }

 private:
  core::ByteReader reader_;
};

struct EventWriter {
  std::string* out;

  void operator()(const HelloEvent& event) const {
    const Frame frame(out, EventCode::kHello);
    append_integer(out, event.version);
  }
  void operator()(const StartedEvent& event) const {
    const Frame frame(out, EventCode::kStarted);
    append_integer(out, event.id);
    append_integer(out, event.pid);
    put_instant(out, event.at);
  }
  void operator()(const NotStartedEvent& event) const {
    const Frame frame(out, EventCode::kNotStarted);
    append_integer(out, event.id);
    append_integer(out, event.stage);
    append_integer(out, event.error);
    append_integer(out, std::uint8_t{event.timed_out});
    append_integer(out, std::uint8_t{event.stopped});
    put_instant(out, event.at);
    put_bytes(out, event.path);
  }
  void operator()(const ExitedEvent& event) const {
    const Frame frame(out, EventCode::kExited);
    append_integer(out, event.id);
    append_integer(out, event.cause);
    append_integer(out, event.value);
    append_integer(out, std::uint8_t{event.stopped});
    append_integer(out, std::uint8_t{event.killed});
    put_instant(out, event.at);
    append_integer(out, event.stop_step);
    append_integer(out, event.last_step);
  }
  void operator()(const KillSentEvent& event) const {
    const Frame frame(out, EventCode::kKillSent);
    append_integer(out, event.refused_pid);
  }
  void operator()(const SweptEvent&) const { const Frame frame(out, EventCode::kSwept); }
  void operator()(const TemplateEvent& event) const {
    const Frame frame(out, EventCode::kTemplate);
    append_integer(out, event.news);
    append_integer(out, event.id);
    put_instant(out, event.at);
    put_bytes(out, event.text);
  }
  void operator()(const ProgressEvent& event) const {
    const Frame frame(out, EventCode::kProgress);
    append_integer(out, event.reporting);
    append_integer(out, event.newest);
    append_integer(out, event.oldest);
    append_integer(out, event.slowest);
    append_integer(out, event.slowest_idle.count());
    append_integer(out, event.idle.count());
    append_integer(out, event.section_limit.count());
  }
  void operator()(const StacksEvent& event) const {
    const Frame frame(out, EventCode::kStacks);
    append_integer(out, event.id);
    append_integer(out, event.step);
    append_integer(out, event.state);
    put_bytes(out, event.wait_channel);
    put_bytes(out, event.text);
  }
  void operator()(const StacksDoneEvent&) const { const Frame frame(out, EventCode::kStacksDone); }
  void operator()(const drain::StopStepEvent& event) const {
    const Frame frame(out, EventCode::kStopStep);
    append_integer(out, event.kind);
    append_integer(out, event.proposal);
    put_numbers(out, event.reporting);
    append_integer(out, event.newest);
    append_integer(out, event.oldest);
    append_integer(out, event.stopped);
    append_integer(out, event.first_stop);
    append_integer(out, event.last_stop);
  }
  void operator()(const MarkEvent& event) const {
    const Frame frame(out, EventCode::kMark);
    append_integer(out, event.id);
    append_integer(out, event.mark);
    put_instant(out, event.at);
    append_integer(out, event.step);
  }
};

StartRequest read_start(Reader* reader) {
  StartRequest request;
  request.id = reader->number<std::uint32_t>();
  request.kind = reader->one_of<StartKind>(kStartKindCount);
  request.lifetime = reader->one_of<Lifetime>(kLifetimeCount);
  request.passed = reader->number<std::uint8_t>();
  request.template_wait = Duration(reader->number<Duration::rep>());
  request.has_channel = reader->one_of<bool>(2);
  request.argv = reader->list();
  request.env = reader->list();
  request.cwd = reader->string();
  request.stdout_path = reader->string();
  request.stderr_path = reader->string();
  request.cpus = reader->numbers(kCpusMax, kCpusMax);
  return request;
}

SignalRequest read_signal(Reader* reader) {
  SignalRequest request;
  request.signal = reader->number<int>();
  request.scope = reader->one_of<SignalScope>(2);
  request.is_stop = reader->one_of<bool>(2);
  request.id = reader->number<std::uint32_t>();
  return request;
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
  const Frame frame(out, RequestCode::kStart);
  append_integer(out, id);
  append_integer(out, kind);
  append_integer(out, lifetime);
  append_integer(out, passed);
  append_integer(out, template_wait.count());
  append_integer(out, std::uint8_t{command.has_channel});
  put_list(out, command.argv);
  put_list(out, command.env);
  put_bytes(out, command.cwd);
  put_bytes(out, command.stdout_path);
  put_bytes(out, command.stderr_path);
  put_numbers(out, command.cpus);
}

void append_signal(std::string* out, const SignalRequest& request) {
  const Frame frame(out, RequestCode::kSignal);
  append_integer(out, request.signal);
  append_integer(out, request.scope);
  append_integer(out, std::uint8_t{request.is_stop});
  append_integer(out, request.id);
}

void append_cancel_starts(std::string* out) { const Frame frame(out, RequestCode::kCancelStarts); }

void append_sweep(std::string* out) { const Frame frame(out, RequestCode::kSweep); }

void append_watch(std::string* out, Duration interval) {
  const Frame frame(out, RequestCode::kWatch);
  append_integer(out, interval.count());
}

void append_stacks(std::string* out, Duration limit) {
  const Frame frame(out, RequestCode::kStacks);
  append_integer(out, limit.count());
}

void append_stop_step(std::string* out, const drain::StopStepRequest& request) {
  const Frame frame(out, RequestCode::kStopStep);
  append_integer(out, request.kind);
  append_integer(out, request.proposal);
  append_integer(out, request.step);
}

void append_event(std::string* out, const Event& event) { std::visit(EventWriter{out}, event); }

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
  Reader reader(payload);
  switch (static_cast<RequestCode>(reader.number<std::uint8_t>())) {
    case RequestCode::kStart: {
      StartRequest start = read_start(&reader);
      const bool has_program = !start.argv.empty() && !start.argv[0].empty();
      const bool has_id = start.id != kEveryWorker;
      *request = std::move(start);
      return has_program && has_id && reader.complete();
    }
    case RequestCode::kSignal: *request = read_signal(&reader); return reader.complete();
    case RequestCode::kCancelStarts: *request = CancelStartsRequest{}; return reader.complete();
    case RequestCode::kSweep: *request = SweepRequest{}; return reader.complete();
    case RequestCode::kWatch: *request = WatchRequest{reader.duration()}; return reader.complete();
    case RequestCode::kStacks:
      *request = StacksRequest{reader.duration()};
      return reader.complete();
    case RequestCode::kStopStep: {
      drain::StopStepRequest stop;
      stop.kind = reader.one_of<drain::Order::Kind>(drain::kOrderKinds);
      stop.proposal = reader.number<std::uint64_t>();
      stop.step = reader.number<std::int64_t>();
      *request = stop;
      return reader.complete();
    }
  }
  return false;
}

bool decode_event(std::string_view payload, Event* event) {
  Reader reader(payload);
  switch (static_cast<EventCode>(reader.number<std::uint8_t>())) {
    case EventCode::kHello: {
      *event = HelloEvent{reader.number<std::uint32_t>()};
      return reader.complete();
    }
    case EventCode::kStarted: {
      StartedEvent started;
      started.id = reader.number<std::uint32_t>();
      started.pid = reader.number<int>();
      started.at = reader.instant();
      *event = started;
      return reader.complete();
    }
    case EventCode::kNotStarted: {
      NotStartedEvent failed;
      failed.id = reader.number<std::uint32_t>();
      failed.stage = reader.one_of<Stage>(kStageCount);
      failed.error = reader.number<int>();
      failed.timed_out = reader.one_of<bool>(2);
      failed.stopped = reader.one_of<bool>(2);
      failed.at = reader.instant();
      failed.path = reader.string();
      *event = failed;
      return reader.complete();
    }
    case EventCode::kExited: {
      ExitedEvent exited;
      exited.id = reader.number<std::uint32_t>();
      exited.cause = reader.one_of<ExitCause>(kExitCauseCount);
      exited.value = reader.number<int>();
      exited.stopped = reader.one_of<bool>(2);
      exited.killed = reader.one_of<bool>(2);
      exited.at = reader.instant();
      exited.stop_step = reader.number<std::int64_t>();
      exited.last_step = reader.number<std::int64_t>();
      *event = exited;
      return reader.complete();
    }
    case EventCode::kKillSent:
      *event = KillSentEvent{reader.number<int>()};
      return reader.complete();
    case EventCode::kSwept: *event = SweptEvent{}; return reader.complete();
    case EventCode::kTemplate: {
      TemplateEvent decoded;
      decoded.news = reader.one_of<TemplateNews>(kTemplateNewsCount);
      decoded.id = reader.number<std::uint32_t>();
      decoded.at = reader.instant();
      decoded.text = reader.string();
      *event = decoded;
      return reader.complete();
    }
    case EventCode::kProgress: {
      ProgressEvent progress;
      progress.reporting = reader.number<std::uint32_t>();
      progress.newest = reader.number<std::int64_t>();
      progress.oldest = reader.number<std::int64_t>();
      progress.slowest = reader.number<std::uint32_t>();
      progress.slowest_idle = reader.duration();
      progress.idle = reader.duration();
      progress.section_limit = reader.duration();
      *event = progress;
      return reader.complete();
    }
    case EventCode::kStacks: {
      StacksEvent stacks;
      stacks.id = reader.number<std::uint32_t>();
      stacks.step = reader.number<std::int64_t>();
      stacks.state = reader.number<std::uint8_t>();
      stacks.wait_channel = reader.string();
      stacks.text = reader.string();
      *event = stacks;
      return reader.complete();
    }
    case EventCode::kStacksDone: *event = StacksDoneEvent{}; return reader.complete();
    case EventCode::kStopStep: {
      drain::StopStepEvent stop;
      stop.kind = reader.one_of<drain::Reply::Kind>(drain::kReplyKinds);
      stop.proposal = reader.number<std::uint64_t>();
      stop.reporting = reader.numbers(kListItemsMax, kTemplateId);
      stop.newest = reader.number<std::int64_t>();
      stop.oldest = reader.number<std::int64_t>();
      stop.stopped = reader.number<std::uint32_t>();
      stop.first_stop = reader.number<std::int64_t>();
      stop.last_stop = reader.number<std::int64_t>();
      *event = std::move(stop);
      return reader.complete();
    }
    case EventCode::kMark: {
      MarkEvent mark;
      mark.id = reader.number<std::uint32_t>();
      mark.mark = reader.one_of<Mark>(kMarkCount);
      mark.at = reader.instant();
      mark.step = reader.number<std::int64_t>();
      *event = mark;
      return reader.complete();
    }
  }
  return false;
}

}  // namespace elastic::guardian
