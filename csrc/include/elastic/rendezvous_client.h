#pragma once

// A node's membership of a job's rendezvous, for programs that start and stop their workers
// themselves. (elastic::Agent includes it.)
//
//   auto client = elastic::RendezvousClient::start(options);
//   auto round = (*client)->next_rendezvous(deadline);
//   // Start this node's workers with the ranks in round->record and round->own. When they have
//   // ended, or (*client)->waiting_nodes() > 0: stop them and call next_rendezvous() again.
//   (*client)->leave("SIGTERM", limit);
//
// One native thread sends heartbeats, reconnects, and serves the store of each round in which this
// node has rank 0. All members except next_rendezvous() and leave() return at once; they report
// what the rendezvous has sent so far.
//
// Thread rule: any member from any thread; next_rendezvous() by one thread at a time. Not usable in
// a child after fork().

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "elastic/export.h"
#include "elastic/rendezvous_options.h"
#include "elastic/rendezvous_types.h"
#include "elastic/status.h"
#include "elastic/store_server.h"
#include "elastic/time.h"

namespace elastic {

struct RendezvousClientOptions {
  std::string run_id = "none";
  RendezvousOptions rendezvous;
  int local_world_size = 1;
  std::string role = "default";
  // The limit for the next call of next_rendezvous() after the round has ended on other nodes.
  Duration stop_grace = std::chrono::seconds(30);
  // The port of the store. 0: a new port for every round.
  std::uint16_t store_port = 0;
  StoreLimits store_limits;
};

// A round, and this node's ranks in it. A store runs at record.master_addr and master_port until
// all members have stopped their workers of the round. It is new for each round (with a store_port:
// emptied).
struct RendezvousRound {
  RoundRecord record;
  NodeAssignment own;
};

class ELASTIC_EXPORT RendezvousClient {
 public:
  // Checks the options (kInvalidArgument) and begins to connect; does not join yet.
  static Result<std::unique_ptr<RendezvousClient>> start(RendezvousClientOptions options);
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;
  // Without leave() before it, or a result, the other nodes see a crashed node.
  ~RendezvousClient();

  // Joins, and waits for a round with this node as a member. A call during a round reports that
  // all workers of that round have ended on this node. If a call fails, the join remains; the next
  // call continues to wait.
  // Errors: kDeadlineExceeded (the deadline passed, or too few nodes joined within join_timeout;
  // the message names what is missing), kAborted (the job is closed; see result()),
  // kInvalidArgument (the join was rejected, or the endpoint has another protocol), kUnavailable
  // (the coordinator is lost), kCancelled (`interrupted`, called after a signal, returned true).
  Result<RendezvousRound> next_rendezvous(Instant deadline,
                                          const std::function<bool()>& interrupted = {});
  // A call of next_rendezvous() in another thread checks its `interrupted` now.
  void wake();

  // Greater than zero: stop the workers and call next_rendezvous(), because other nodes wait to
  // join, or because the round has ended on other nodes. Spares beyond max_nodes are not counted.
  int waiting_nodes() const;
  // True if the job is closed, or set_closed() was called.
  bool is_closed() const;
  // The result of a closed job; nullopt until this node has received it.
  std::optional<JobResult> result() const;
  // Closes the job for all nodes.
  void set_closed(const JobResult& result);
  // Leaves the job and waits until the leave is acknowledged, at most `limit`. The node that hosts
  // the coordinator first waits until the other nodes have left. Ends a next_rendezvous() in
  // another thread (kFailedPrecondition). False: the leave may not have been received.
  // `interrupted` is called after a signal; true ends the wait, and the leave continues. A further
  // call waits for the same leave.
  bool leave(const std::string& reason, Duration limit,
             const std::function<bool()>& interrupted = {});

  // The address at which other nodes reach this one; "" before the first connection.
  std::string address() const;
  // The progress lines since the last call, for a log: what the rendezvous waits for, or why the
  // coordinator cannot be reached. Only the latest lines are kept.
  std::vector<std::string> take_log_lines();

 private:
  class Impl;
  explicit RendezvousClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
