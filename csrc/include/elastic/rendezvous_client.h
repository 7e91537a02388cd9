#pragma once

// A node's seat in its job's rendezvous, for programs that run their workers by their own means.
// (An elastic::Agent has a seat of its own and needs none of this.)
//
//   auto client = elastic::RendezvousClient::start(options);
//   auto round = (*client)->next_rendezvous(deadline);
//   // run this node's workers by round->record and round->own; when they are gone, or somebody
//   // waits ((*client)->waiting_nodes() > 0): stop them and ask for the next round
//   (*client)->leave("SIGTERM", limit);
//
// One native thread keeps the seat: heartbeats, reconnecting, and the store of each round of which
// this node is rank 0. Everything but next_rendezvous() and leave() answers at once from what was
// pushed.
//
// Thread rule: any member from any thread; next_rendezvous() by one thread at a time. Of no use in
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
#include "elastic/store_options.h"
#include "elastic/time.h"

namespace elastic {

struct RendezvousClientOptions {
  std::string run_id = "none";
  RendezvousOptions rendezvous;
  int local_world_size = 1;
  std::string role = "default";
  // How long next_rendezvous() may take to be called again once the round is over for others.
  Duration stop_grace = std::chrono::seconds(30);
  // The port of the rounds' stores. 0: a fresh one for every round.
  std::uint16_t store_port = 0;
  StoreLimits store_limits;
};

// A round and this node's share of it. A store is served at record.master_addr and master_port,
// fresh for each round (with a store_port: emptied), until no member has workers of it any more.
struct RendezvousRound {
  RoundRecord record;
  NodeAssignment own;
};

class ELASTIC_EXPORT RendezvousClient {
 public:
  // Checks the options (kInvalidArgument) and begins to look for the others; joins nothing yet.
  static Result<std::unique_ptr<RendezvousClient>> start(RendezvousClientOptions options);
  RendezvousClient(const RendezvousClient&) = delete;
  RendezvousClient& operator=(const RendezvousClient&) = delete;
  ~RendezvousClient();  // without leave() before it, or a result: as a crash, to the others

  // Joins, and waits for a round that this node is a member of. Asked while it is in a round: says
  // that no worker of that round is left. A call that did not get its round leaves the join
  // standing; the next call goes on waiting. Errors: kDeadlineExceeded (the deadline, or too few
  // nodes within join_timeout; the message says what was waited for), kAborted (the job is closed:
  // result()), kInvalidArgument (refused, or nobody of this protocol at the endpoint), kUnavailable
  // (the coordinator is lost), kCancelled (`interrupted`, asked when a signal came, said so).
  Result<RendezvousRound> next_rendezvous(Instant deadline,
                                          const std::function<bool()>& interrupted = {});

  // More than zero: the round should end, because others wait to be let in or because it has
  // ended for others already. Spares beyond max_nodes do not count.
  int waiting_nodes() const;
  // The job is closed, or was by set_closed().
  bool is_closed() const;
  // Once the job is closed and this node knows how it ended.
  std::optional<JobResult> result() const;
  // Ends the job for everybody.
  void set_closed(const JobResult& result);
  // Says that this node goes, and why, and waits until that is known or `limit` has passed; the
  // node that runs the coordinator waits for the others to go first. Ends a next_rendezvous() of
  // another thread (kFailedPrecondition). False: it may not have been heard.
  bool leave(const std::string& reason, Duration limit);

  // The address at which others reach this node; "" until the way to the rendezvous is known.
  std::string address() const;
  // What there was to say since the last call, for a log: what is waited for, a coordinator that
  // cannot be reached. The oldest are dropped when nobody asks.
  std::vector<std::string> take_log_lines();

 private:
  class Impl;
  explicit RendezvousClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
