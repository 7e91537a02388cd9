#include "core/base/describe.h"

#include <cerrno>
#include <system_error>

#include "core/base/text.h"
#include "elastic/agent.h"
#include "elastic/worker_group.h"

namespace elastic {
namespace {

std::string describe_hang(const WorkerExit& exit) {
  return "could not be started within " + core::duration_text(*exit.start_timeout) +
         ": it hangs in " + exit.stage + " " + exit.path + "; check that its file system responds";
}

// The limit behind an errno whose message does not name it.
const char* limit_hint(int error) {
  switch (error) {
    case EAGAIN: return " (the limit of processes is reached: ulimit -u, pids.max of the cgroup)";
    case EMFILE: return " (the limit of open files is reached: ulimit -n)";
    default: return "";
  }
}

std::string with(std::string who, std::string_view how) {
  if (!how.empty()) who.append(1, ' ').append(how);
  return who;
}

std::string rank_text(int rank) { return "rank " + std::to_string(rank); }

void append_fact(std::string* text, std::string_view label, std::string_view fact) {
  if (fact.empty()) return;
  text->append("\n    ").append(label);
  text->append(label.size() < 8 ? 8 - label.size() : 1, ' ').append(fact);
}

void append_evidence(std::string* text, const FailureEvidence& evidence, std::string_view output) {
  append_fact(text, "error", evidence.error);
  append_fact(text, "hint", evidence.hint);
  if (output.empty()) return;
  *text += "\n    last lines of its stderr:";
  while (!output.empty()) {
    const std::size_t end = output.find('\n');
    text->append("\n      | ").append(output.substr(0, end));
    output.remove_prefix(end == std::string_view::npos ? output.size() : end + 1);
  }
}

}  // namespace

std::string WorkerExit::describe() const {
  switch (kind) {
    case ExitKind::kExited: {
      // A shell, or another program that waits for a process, ends with 128 + N when signal N has
      // killed the process.
      constexpr int kShellSignalBase = 128;
      const std::string text = "exited with code " + std::to_string(code);
      const char* name = core::signal_name(code - kShellSignalBase);
      return name == nullptr ? text : text + " (128 + " + name + ")";
    }
    case ExitKind::kSignaled:
      if (!verdict.empty()) return verdict;
      return "killed by " + core::signal_text(signal) + (core_dumped ? ", core dumped" : "");
    case ExitKind::kNotStarted:
      if (start_timeout) return describe_hang(*this);
      return "could not be started: " + stage + " " + path + ": " +
             std::system_category().message(error) + limit_hint(error);
    case ExitKind::kUnknown: break;
  }
  return "ended; its exit status could not be read";
}

std::string WorkerFailure::describe() const {
  return core::describe_local_worker(rank, local_rank, pid, message);
}

std::string AgentResult::report() const {
  if (message.empty()) return "";
  std::string text = message;
  // The message begins with the failure of this node that ended the job, if it is of this node.
  bool is_own = false;
  for (const WorkerFailure& failure : failures) {
    if (is_own || !message.starts_with(failure.describe())) continue;
    is_own = true;
    append_evidence(&text, failure.evidence.value_or(FailureEvidence{}), failure.stderr_tail);
  }
  if (!is_own && job && job->evidence) {
    append_fact(&text, "host", job->evidence->host);
    append_evidence(&text, *job->evidence, job->evidence->output);
  }
  for (const WorkerFailure& failure : failures) {
    if (message.starts_with(failure.describe())) continue;
    text += "\nalso failed: " + failure.describe();
    if (failure.evidence) append_fact(&text, "error", failure.evidence->error);
  }
  return text;
}

namespace core {

std::string ranges_text(const std::vector<std::int32_t>& numbers) {
  std::string text;
  for (std::size_t first = 0; first < numbers.size();) {
    std::size_t last = first;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ',';
    text += std::to_string(numbers[first]);
    if (last > first) text += '-' + std::to_string(numbers[last]);
    first = last + 1;
  }
  return text;
}

std::string describe_ranks(const std::vector<std::int32_t>& ranks) {
  if (ranks.size() == 1) return rank_text(ranks.front());
  return std::to_string(ranks.size()) + " ranks (" + ranges_text(ranks) + ")";
}

std::string describe_worker(int rank, std::string_view how) { return with(rank_text(rank), how); }

std::string describe_worker(int rank, std::string_view node, std::string_view how) {
  return with(rank_text(rank).append(" on ").append(node), how);
}

std::string describe_local_worker(int rank, int local_rank, int pid, std::string_view how) {
  std::string who = rank_text(rank) + " (local rank " + std::to_string(local_rank);
  if (pid > 0) who += ", pid " + std::to_string(pid);
  return with(who + ")", how);
}

std::string describe_unranked_worker(int local_rank, std::string_view how) {
  return with("the worker of local rank " + std::to_string(local_rank), how);
}

std::string RestartBudget::describe_left() const {
  return std::to_string(allowed - used) + " of " + std::to_string(allowed) + " restarts left";
}

std::string RestartBudget::describe_used() const {
  if (allowed == 0) return "no restarts allowed";
  return std::to_string(used) + " of " + std::to_string(allowed) + " restarts used";
}

std::string RestartBudget::describe_spent() const {
  switch (allowed) {
    case 0: return "no restart is allowed";
    case 1: return "the only restart was used";
    default: return "none of " + std::to_string(allowed) + " restarts is left";
  }
}

}  // namespace core
}  // namespace elastic
