#pragma once

// How a supervisor reaches its guardian: the path of the guardian's program, the start requests
// with their descriptors, and the bytes that wait to be sent. And what a guardian that died leaves
// behind: the orphans, which this process kills.

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "core/workers/guardian_protocol.h"
#include "elastic/status.h"
#include "elastic/worker_group.h"
#include "os/base/fd.h"

namespace elastic::host {

// The option if it is set. Else relative to the file that contains this library (a wheel's
// bin/elastic-guardian, an installation's ../libexec/elastic/elastic-guardian), then the install
// path of the build. kNotFound names every path that was tried.
Result<std::string> find_guardian(const std::string& option);

// Replaces streams that a worker would inherit.
struct WorkerStream {
  os::UniqueFd descriptor;  // its stderr; invalid: inherited
  bool is_stdout = false;   // and its stdout
};

// The start request of one worker. Kept while the generation exists, because it may be sent again.
struct StartOrder {
  std::string request;
  os::UniqueFd stream;  // passed with the request; invalid: none
};

// Bytes for the guardian, and the descriptors that are passed with some of them.
struct UnsentRequests {
  struct Passed {
    std::size_t offset;  // of the byte that carries it
    int descriptor;      // owned by a StartOrder, or below
  };
  std::string bytes;
  std::size_t begin = 0;  // the bytes before it were sent
  std::deque<Passed> passed;
  std::vector<os::UniqueFd> owned;  // of these, those that no StartOrder owns

  void append(const StartOrder& order) {
    if (order.stream.valid()) passed.push_back({bytes.size(), order.stream.get()});
    bytes += order.request;
  }
  void append(const std::string& request, os::UniqueFd file) {
    passed.push_back({bytes.size(), file.get()});
    owned.push_back(std::move(file));
    bytes += request;
  }
  // As send(2), with at most one descriptor, which is passed with the first byte.
  ssize_t send_some(int socket);
  void clear() {
    bytes.clear();
    begin = 0;
    passed.clear();
    owned.clear();
  }
};

// The start requests of a generation, or an error.
Result<std::vector<StartOrder>> encode_starts(const std::vector<WorkerCommand>& commands,
                                              std::vector<WorkerStream> streams,
                                              guardian::StartKind kind, Duration template_wait);

// The same of a helper, whose stdout and stderr are the stream.
Result<StartOrder> encode_helper(std::uint32_t id, const WorkerCommand& command,
                                 os::UniqueFd stream);

// Appends a ContinueRequest for each of the `workers`; nothing if a list of variables is invalid.
Status append_continue(std::string* out, std::uint64_t round,
                       const std::vector<std::vector<std::string>>& env, std::size_t workers);

// Kills the orphans of a guardian that died, which this process adopts as the next subreaper.
//
// Which children are orphans of the guardian? All children except these: those in this process's
// own session (workers and their descendants are in sessions created below the guardian, and a
// process cannot enter an existing session), those that existed before the guardian started, and
// those that run the guardian's program (guardians of other groups). So a program that starts a
// child in a new session later must not use this; see WorkerGroupOptions::become_subreaper.
//
// Weak point: without become_subreaper there is no sweep. If the guardian is killed, an orphan that
// has left its worker's session survives.
class OrphanSweep {
 public:
  // Makes this process a subreaper and records its children.
  static Result<OrphanSweep> prepare(const std::string& guardian_path);
  // Kills every present orphan and reaps those that have ended. Their own children become orphans
  // for the next call. Cleaners (os/process/process_tree.h) are killed a while after all others.
  // Returns the orphans found; empty: none is left.
  std::vector<pid_t> kill_once();

 private:
  explicit OrphanSweep(std::string guardian_path) : guardian_path_(std::move(guardian_path)) {}
  bool is_orphan(pid_t pid) const;

  std::string guardian_path_;
  std::vector<pid_t> before_;
  std::optional<Instant> cleaners_end_;  // when cleaners are killed, too
};

}  // namespace elastic::host
