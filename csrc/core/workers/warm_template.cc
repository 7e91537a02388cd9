#include "core/workers/warm_template.h"

#include <utility>

// Theory of operation. The process imports its modules, checks itself, and is then ready until it
// ends. It reports before it exits that it is unfit (final) or stale (a module was changed, so a
// new process is started). A process that is killed while it is ready is replaced. One that dies
// during an import would probably die again, so it is not replaced.

namespace elastic {

guardian::StartKind WarmTemplate::begin_generation(std::size_t workers) {
  is_reported_ = false;
  const bool forks = state_ == State::kReady || (state_ == State::kImporting && workers > 1);
  return forks ? guardian::StartKind::kFork : guardian::StartKind::kExec;
}

WarmTemplate::Reaction WarmTemplate::on(const guardian::TemplateEvent& event) {
  const std::string text(event.text);
  switch (event.news) {
    case guardian::TemplateNews::kImporting: imported_ = text; return {};
    case guardian::TemplateNews::kReady: state_ = State::kReady; return {};
    case guardian::TemplateNews::kUnfit:
      state_ = State::kUnfit;
      is_reported_ = true;
      return {.starts = false, .notice = "--warm has no effect, workers are executed: " + text};
    case guardian::TemplateNews::kStale:
      state_ = State::kStale;
      is_reported_ = true;
      return {.starts = false,
              .notice = text +
                        " was changed: workers are executed until a new template process "
                        "has imported it"};
    case guardian::TemplateNews::kExecuted:
      if (std::exchange(is_reported_, true)) return {};
      return {
          .starts = false,
          .notice = "local rank " + std::to_string(event.id) + " is executed, not forked: " + text};
    case guardian::TemplateNews::kLeftOut:
      if (!left_out_.insert(text).second) return {};  // of a template that was replaced
      return {.starts = false,
              .notice = "--warm: each worker imports a module of the script itself: " + text};
  }
  return {};
}

WarmTemplate::Reaction WarmTemplate::on_end(const WorkerExit& exit) {
  const State before = std::exchange(state_, State::kNone);
  if (before == State::kNone || before == State::kUnfit) return {};
  const std::string verb = exit.kind == ExitKind::kSignaled ? "was " : "";
  const std::string what = "the template process " + verb + exit.describe();
  const std::string module = std::exchange(imported_, "");
  if (before == State::kImporting) {
    is_reported_ = true;
    return {.starts = false,
            .notice = "--warm has no effect, workers are executed: " + what +
                      (module.empty() ? "" : " while it imported " + module)};
  }
  if (before == State::kReady && ++renewals_ > kRenewalsMax) {
    return {.starts = false,
            .notice = "--warm has no effect any more, workers are executed: " + what + " for the " +
                      std::to_string(renewals_) + "th time"};
  }
  state_ = State::kImporting;
  if (before == State::kStale) return {.starts = true, .notice = {}};
  return {.starts = true, .notice = what + "; a new one is started"};
}

}  // namespace elastic
