#include "core/workers/guardian_protocol.h"

#include "core/base/fields.h"

// Theory of operation. One list of fields for each message serves both directions. A field that is
// short, exceeds its limit or lacks its NUL makes the message invalid, and so do bytes after the
// last field.

namespace elastic::guardian {
namespace {

template <typename Visitor>
void c_string(Visitor& v, std::string& text) {
  std::string_view view = text;
  v.c_string(view);
  if constexpr (!Visitor::kIsWriter) text = view;
}

template <typename Visitor>
void strings(Visitor& v, std::vector<std::string_view>& items) {
  v.list(items, kListItemsMax, [&](std::string_view& item) { v.c_string(item); });
}

// At most `most` numbers, each below `limit`.
template <typename Visitor>
void numbers(Visitor& v, std::vector<std::uint32_t>& values, std::size_t most,
             std::uint32_t limit) {
  v.list(values, most, [&](std::uint32_t& value) {
    v.number(value);
    v.check(value < limit);
  });
}

// ---- Requests.

template <typename Visitor>
void fields(Visitor& v, StartRequest& request) {
  v.number(request.id);
  v.choice(request.kind, StartKind::kFork);
  v.choice(request.lifetime, Lifetime::kHelper);
  v.number(request.passed);
  v.duration(request.template_wait);
  v.flag(request.has_channel);
  strings(v, request.argv);
  strings(v, request.env);
  v.c_string(request.cwd);
  v.c_string(request.stdout_path);
  v.c_string(request.stderr_path);
  numbers(v, request.cpus, kCpusMax, kCpusMax);
}

template <typename Visitor>
void fields(Visitor& v, SignalRequest& request) {
  v.number(request.signal);
  v.choice(request.scope, SignalScope::kHandler);
  v.flag(request.is_stop);
  v.number(request.id);
}

template <typename Visitor>
void fields(Visitor& v, CancelStartsRequest& request) {
  v.duration(request.start_timeout);
}

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
  v.flag(request.measures_work);
}

template <typename Visitor>
void fields(Visitor& v, drain::StopStepRequest& request) {
  v.choice(request.kind, drain::Order::Kind::kRelease);
  v.number(request.proposal);
  v.number(request.step);
  v.flag(request.reports_waiting);
}

template <typename Visitor>
void fields(Visitor& v, StopReasonRequest& request) {
  v.c_string(request.text);
}

template <typename Visitor>
void fields(Visitor& v, CutRequest& request) {
  v.number(request.round);
}

template <typename Visitor>
void fields(Visitor& v, ContinueRequest& request) {
  v.number(request.id);
  v.number(request.round);
  strings(v, request.env);
}

template <typename Visitor>
void fields(Visitor& v, snapshot::KeepRequest& request) {
  v.number(request.point.step);
  v.number(request.point.round);
  v.choice(request.point.kind, ResumeKind::kMixed);
  for (auto* value : {&request.world_size, &request.base_rank, &request.ranks, &request.shared_rank,
                      &request.shared_world_size}) {
    v.number(*value);
  }
}

template <typename Visitor>
void fields(Visitor&, snapshot::ConnectRequest&) {}

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
void fields(Visitor& v, WorkerExit& exit) {
  v.choice(exit.kind, ExitKind::kSignaled);
  v.number(exit.code);
  v.number(exit.signal);
  v.flag(exit.core_dumped);
  v.flag(exit.stopped_by_us);
  v.flag(exit.killed_by_us);
  c_string(v, exit.stage);
  v.number(exit.error);
  c_string(v, exit.path);
  v.optional(exit.start_timeout, [&](Duration& limit) { v.duration(limit); });
  v.instant(exit.at);
  v.number(exit.stop_step);
  v.number(exit.last_step);
}

template <typename Visitor>
void fields(Visitor& v, EndedEvent& event) {
  v.number(event.id);
  fields(v, event.exit);
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
  v.c_string(event.command);
}

template <typename Visitor>
void fields(Visitor& v, TemplateEvent& event) {
  v.choice(event.news, TemplateNews::kLeftOut);
  v.number(event.id);
  v.instant(event.at);
  v.c_string(event.text);
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
  v.flag(event.has_advanced);
  v.number(event.waiting);
  v.duration(event.waited);
}

template <typename Visitor>
void fields(Visitor& v, StacksEvent& event) {
  v.number(event.id);
  v.number(event.step);
  v.number(event.state);
  v.c_string(event.wait_channel);
  v.c_string(event.text);
  v.c_string(event.collectives);
  v.c_string(event.groups);
  v.duration(event.cpu);
  v.number(event.io_bytes);
  v.flag(event.is_at_work);
  v.number(event.polling_threads);
}

template <typename Visitor>
void fields(Visitor&, StacksDoneEvent&) {}

template <typename Visitor>
void fields(Visitor& v, drain::StopStepEvent& event) {
  v.choice(event.kind, drain::Reply::Kind::kWaiting);
  v.number(event.proposal);
  numbers(v, event.reporting, kListItemsMax, kTemplateId);
  v.number(event.newest);
  v.number(event.oldest);
  v.number(event.stopped);
  v.number(event.first_stop);
  v.number(event.last_stop);
}

template <typename Visitor>
void fields(Visitor& v, MarkEvent& event) {
  v.number(event.id);
  v.choice(event.mark, Mark::kRaised);
  v.instant(event.at);
  v.number(event.step);
}

template <typename Visitor>
void fields(Visitor& v, snapshot::HeldEvent& event) {
  v.list(event.held, snapshot::kHeldMax, [&](HeldState& state) {
    v.number(state.rank);
    v.number(state.world_size);
    v.number(state.step);
    v.number(state.round);
    v.number(state.digest);
    v.flag(state.is_replicated);
  });
  v.number(event.bytes);
  v.number(event.needed);
  v.number(event.left);
  v.c_string(event.notice);
}

template <typename Visitor>
void fields(Visitor& v, SignaturesEvent& event) {
  v.number(event.id);
  v.flag(event.is_last);
  v.c_string(event.signatures);
  v.c_string(event.groups);
}

// ---- All messages.

template <typename Messages>
void append(std::string* out, Messages& message) {
  const core::FrameWriter frame(out);
  core::FieldWriter writer(out);
  writer.alternative(message);
  std::visit([&](auto& one) { fields(writer, one); }, message);
}

template <typename Messages>
bool decode(std::string_view payload, Messages* message) {
  core::FieldReader reader(payload);
  reader.alternative(*message);
  std::visit([&](auto& one) { fields(reader, one); }, *message);
  return reader.ok();
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

EndedEvent not_started(std::uint32_t id, Stage stage, int error, std::string_view path,
                       Instant at) {
  EndedEvent event{.id = id, .exit = {}};
  event.exit.kind = ExitKind::kNotStarted;
  event.exit.stage = to_string(stage);
  event.exit.error = error;
  event.exit.path = path;
  event.exit.at = at;
  return event;
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

bool decode_request(std::string_view payload, Request* request) {
  if (!decode(payload, request)) return false;
  const auto* start = std::get_if<StartRequest>(request);
  if (start == nullptr) return true;
  const bool has_program = !start->argv.empty() && !start->argv[0].empty();
  return has_program && start->id != kEveryWorker;
}

bool decode_event(std::string_view payload, Event* event) { return decode(payload, event); }

}  // namespace elastic::guardian
