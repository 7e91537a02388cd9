#pragma once

// A coordinator: the server that runs the rendezvous of jobs (docs/rendezvous.md).
//
//   auto coordinator = elastic::Coordinator::start({.host = "", .port = 29400});
//   if (!coordinator.ok()) return report(coordinator.status());
//
// One native thread serves the sessions of any number of jobs, identified by run id. The same port
// is also a key-value store with TCPStore's protocol (elastic/store_server.h). Its keys belong to
// the users; membership is never stored in it.
//
// A node reports where the coordinator of its job runs as CoordinatorInfo and CoordinatorMove.
//
// Thread rule: every member may be called from any thread. In a child after fork() close() and the
// destructor do nothing: the coordinator runs in the parent.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "elastic/export.h"
#include "elastic/status.h"
#include "elastic/store_server.h"
#include "elastic/time.h"
#include "elastic/token_options.h"

namespace elastic {

// The limits of a coordinator; a session that exceeds one is rejected or closed.
struct CoordinatorLimits {
  std::size_t sessions_max = 65536;
  // A job that no node has joined makes place for a new one. Without a token the jobs that one
  // address has begun are at most a quarter of the limit (but 16 in any case).
  std::size_t jobs_max = 4096;
  // Messages that a node has not read. Beyond it the session is closed.
  std::size_t session_output_bytes_max = 1 << 20;
  // The buffers of all sessions together.
  std::size_t buffered_bytes_max = std::size_t{1} << 30;
  // A session connection that has not sent its hello by then is closed.
  Duration hello_timeout = std::chrono::seconds(10);
};

struct CoordinatorOptions {
  // The address and port to bind, as in StoreServerOptions.
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  // The store of the users at its port. Without a token every process that reaches the port can
  // fill it, in the agent that hosts the coordinator, so its total is less than a StoreServer's.
  StoreLimits store_limits = {.total_bytes_max = std::size_t{1} << 30};
  CoordinatorLimits limits = {};
  // The tokens of its jobs. With them only sessions that prove one of them are served, and the
  // store serves only hosts that have or had such a session.
  TokenOptions token = {};
  // A file with the jobs' state, which a restarted coordinator reads. "": no file; a restarted
  // coordinator rebuilds the state from the agents when they resume.
  std::string state_file = {};
  // How many nodes keep each job's record, so that one of them can become its coordinator when this
  // one is lost (docs/high-availability.md). 1: none; 0: chosen by the number of hosts. A job whose
  // state is in a file has one.
  int voters = 1;
  // A command for sh -c, run for each host that a job excludes, with the variables of
  // docs/policy.md; after a minute its process group is killed. "": none.
  std::string on_exclude = {};
  // Receives one log line for each event of a job or node. Called on the coordinator's thread; must
  // not block and must not call the coordinator.
  std::function<void(std::string_view line)> log = {};
};

struct CoordinatorStats {
  std::uint64_t sessions = 0;           // open now
  std::uint64_t sessions_total = 0;     // since the start
  std::uint64_t sessions_rejected = 0;  // closed for a protocol violation or a limit
  std::uint64_t jobs = 0;               // held now; a finished job is removed after its last node
};

class ELASTIC_EXPORT Coordinator {
 public:
  // Binds, listens and starts the thread. Errors: as StoreServer::start, and kInvalidArgument for
  // the token, and kFailedPrecondition if the state file cannot be read or written, is damaged, or
  // has a newer version, or if the build cannot use a token.
  static Result<std::unique_ptr<Coordinator>> start(const CoordinatorOptions& options);

  Coordinator(const Coordinator&) = delete;
  Coordinator& operator=(const Coordinator&) = delete;
  ~Coordinator();  // close(0)

  std::uint16_t port() const;
  const std::string& host() const;  // the numeric address that is bound
  CoordinatorStats stats() const;
  // One line for each job: its state, and what it waits for.
  std::string describe() const;

  // Closes all sessions and joins the thread. If every job is closed, first waits up to `drain`
  // until all nodes have received the result and disconnected. Agents of open jobs keep trying to
  // reconnect to the same address. Further calls do nothing.
  void close(Duration drain = Duration::zero());

 private:
  class Impl;
  explicit Coordinator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Where the coordinator of a job runs.
struct CoordinatorInfo {
  std::string address;  // where it accepts sessions: host:port; "": unknown
  // Terms are compared within a lineage: 32 hexadecimal digits; "": the job has one voter.
  std::string lineage;
  std::uint64_t term = 1;
  std::vector<std::string> voters;  // their voter ports; empty: the job has one voter

  bool operator==(const CoordinatorInfo&) const = default;
};

// The coordinator of a job runs in another process than before, as a node saw it.
struct CoordinatorMove {
  std::string from;   // the address of the former coordinator
  std::string cause;  // "connection_closed", "silent" or "handed_over"
  Duration took{};    // from the last contact with the former coordinator to the new session
};

}  // namespace elastic
