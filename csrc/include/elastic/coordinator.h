#pragma once

// A coordinator: the place where the agents of jobs meet (docs/rendezvous.md).
//
//   auto coordinator = elastic::Coordinator::start({.host = "", .port = 29400});
//   if (!coordinator.ok()) return report(coordinator.status());
//
// One native thread serves the sessions of any number of jobs, each by its id. The port is at the
// same time a key-value store that speaks TCPStore's protocol (elastic/store_server.h): its keys
// belong to the users, and membership is never kept there.
//
// Thread rule: every member may be called from any thread. In a child after fork() there is no
// coordinator: close() and the destructor do nothing there.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "elastic/export.h"
#include "elastic/status.h"
#include "elastic/store_options.h"
#include "elastic/time.h"

namespace elastic {

// What a coordinator takes before it turns somebody away.
struct CoordinatorLimits {
  std::size_t sessions_max = 65536;
  std::size_t jobs_max = 4096;
  // What a session has been told and does not read. Past it the session is closed.
  std::size_t session_output_bytes_max = 1 << 20;
  // What waits in the buffers of all sessions together.
  std::size_t buffered_bytes_max = std::size_t{1} << 30;
  // A connection that has begun a session must say by then for which node.
  Duration hello_timeout = std::chrono::seconds(10);
};

struct CoordinatorOptions {
  // What to bind, as in StoreServerOptions.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  StoreLimits store_limits = {};
  CoordinatorLimits limits = {};
  // Where the jobs' state is kept, so that a coordinator that was restarted knows them. "":
  // nowhere; then it is rebuilt from what the agents say when they resume.
  std::string state_file = {};
  // Told what happens to jobs and nodes, a line each. Called on the coordinator's thread; must not
  // block and not call the coordinator.
  std::function<void(std::string_view line)> log = {};
};

struct CoordinatorStats {
  std::uint64_t sessions = 0;           // open now
  std::uint64_t sessions_total = 0;     // since the start
  std::uint64_t sessions_rejected = 0;  // closed for breaking the protocol or a limit
  std::uint64_t jobs = 0;               // that are not over and forgotten
};

class ELASTIC_EXPORT Coordinator {
 public:
  // Binds, listens and starts the thread; errors as StoreServer::start has them. Also:
  // kFailedPrecondition for a state file that cannot be read or written, is damaged, or of a newer
  // version.
  static Result<std::unique_ptr<Coordinator>> start(const CoordinatorOptions& options);

  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;
  ~Coordinator();  // close(0)

  std::uint16_t port() const;
  const std::string& host() const;  // the numeric address that is bound
  CoordinatorStats stats() const;
  // A line for each job: its state, and what it waits for.
  std::string describe() const;

  // Ends it. If every job is over, first waits up to `drain` until all sessions have heard the
  // result and are gone; agents of jobs that are not go on looking for a coordinator at the same
  // address. Joins the thread. Further calls do nothing.
  void close(Duration drain = Duration::zero());

 private:
  class Impl;
  explicit Coordinator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
