#pragma once

// The copies of snapshots between the nodes of a job: this node's are sent to its buddy, those of
// another node are kept here, and the ranks of a node that has not got their state get it from
// here. docs/snapshots.md; core/snapshot/copy_plan.h decides what is copied to where.
//
// Loop thread only. Made when this node's first snapshot is complete, or when it needs one.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/held_state.h"
#include "core/snapshot/copy_wire.h"
#include "core/snapshot/format.h"
#include "core/snapshot/snapshot_types.h"
#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "elastic/time.h"
#include "host/base/tokens.h"
#include "host/succession/voter_links.h"
#include "os/base/fd.h"
#include "os/loop/registration.h"
#include "os/process/memory_file.h"

namespace elastic::host {

class SnapshotCopies final : private os::FdHandler {
 public:
  struct Options {
    std::string job_id = {};
    std::string address = {};    // at which other nodes reach this one
    std::string bind_host = {};  // where the port listens; "": every interface
    PortRange ports = {};
    std::shared_ptr<Tokens> tokens = {};  // null: nothing is encrypted
    std::string host = {};
    std::string domain = {};
    std::uint64_t rate = 0;        // of copies that are sent, in bytes a second
    std::uint64_t memory_max = 0;  // of the copies that are kept here; 0: what the host has
    int buddies = 1;               // the nodes that get copies of this one's
  };
  struct Sink {
    std::function<void(const snapshot::CopyReport& report)> report;   // to the coordinator
    std::function<void(const snapshot::CopiesEvent& event)> changed;  // what is kept here
    std::function<void(os::UniqueFd socket)> attach;                  // to the guardian
    std::function<void(const std::string& text)> log;
  };

  // `loop` outlives the object.
  SnapshotCopies(os::EventLoop* loop, Options options, Sink sink);
  SnapshotCopies(const SnapshotCopies&) = delete;
  SnapshotCopies& operator=(const SnapshotCopies&) = delete;
  ~SnapshotCopies();

  // A round begins here: what is older than its step, and of its world size, is kept. `round`: 0:
  // nothing is.
  void begin_round(std::uint64_t round, int group_rank, const snapshot::KeepRequest& kept);
  // The guardian's report: of the snapshots of this node's ranks.
  void on_held(const std::vector<HeldState>& held);
  void on_order(const snapshot::CopyOrder& order);
  // Gets these snapshots and passes them to the guardian; calls `done` once, unless it is
  // cancelled.
  using Done = std::function<void(Status status)>;
  void fetch(std::int64_t step, int world_size, std::vector<HeldSource> sources, Done done);
  void cancel_fetch();
  // Of the copies that are kept here.
  std::uint64_t bytes() const;

 private:
  using ConnectionId = VoterLinks::ConnectionId;
  // A whole snapshot in a file of memory.
  struct File {
    HeldState state;
    std::uint64_t size = 0;
    os::MemoryFile fd = {};
    bool is_own = false;  // of a rank of this node: pinned, in the guardian's file
    bool is_replicated = false;
    bool is_shared = false;  // the guardian holds it for ranks without their own
  };
  struct Sending {
    const File* file = nullptr;  // of files_
    std::string address = {};    // of a buddy; "": to a node that has asked for it
    std::uint64_t at = 0;
    std::uint64_t taken = 0;
    bool is_ready = false;
  };
  struct Receiving {
    File file;
    std::uint64_t at = 0;
    std::uint32_t digest = 0;
    bool is_fetched = false;
  };
  struct Fetch {
    std::int64_t step = -1;
    int world_size = 0;
    std::vector<HeldSource> sources;  // the first one is next
    bool is_adopting = false;
    Done done;
    int world_size_of_next() const {
      return sources.front().is_shared ? sources.front().world_size : world_size;
    }
  };

  Status open_port();
  bool attach();
  void on_ready(std::uint32_t events) override;
  void on_packet(const snapshot::AgentPacket& packet, os::UniqueFd file);
  void request_pins();
  void on_pinned(std::uint32_t count);

  void on_frame(ConnectionId from, const std::string& address, std::string_view bytes);
  void on_lost(const std::string& address, const Status& why);
  void on_ended(ConnectionId connection);
  void send(ConnectionId to, const std::string& address, const snapshot::CopyMessage& message);

  void put_next();
  void put_ended(const std::string& fault);
  void retry_later();
  void pump(Sending* sending, ConnectionId to, const std::string& address, bool is_limited);
  void serve(ConnectionId from, const snapshot::CopyMessage& wanted);
  bool may_be_shared(const HeldState& state) const;
  void serve_waiting();
  void begin_receiving(ConnectionId from, const std::string& address,
                       const snapshot::CopyMessage& message);
  void receive(ConnectionId from, const std::string& address, const snapshot::CopyMessage& message);
  std::string complete(Receiving received);
  std::string check_room(std::uint64_t size) const;

  void fetch_next();
  void adopt(const File& file);
  void end_fetch(Status status);

  const File* find(std::int32_t rank, std::int32_t world_size, std::int64_t step,
                   std::uint32_t round) const;
  template <typename Keep>
  void keep_files(Keep keep);
  void report();
  void note_changed();

  os::EventLoop* const loop_;
  const Options options_;
  const Sink sink_;
  VoterLinks links_;
  bool has_port_ = false;
  std::string address_;
  os::UniqueFd guardian_;
  os::Watch watch_;

  std::uint64_t round_ = 0;
  int group_rank_ = 0;
  snapshot::KeepRequest kept_;  // of the round
  std::vector<HeldState> held_;
  std::optional<snapshot::CopyOrder> order_;
  bool is_copied_ = false;  // what it orders
  std::vector<snapshot::SavedStep> copied_;
  std::vector<std::unique_ptr<File>> files_;

  std::optional<Sending> put_;  // to the buddy
  struct Put {
    std::int32_t rank = 0;
    snapshot::Buddy buddy = {};
  };
  std::vector<Put> to_put_;                                // the first one is next
  std::map<ConnectionId, Sending> served_;                 // to nodes that have asked for it
  std::map<ConnectionId, snapshot::CopyMessage> waiting_;  // until the guardian shares it
  std::map<ConnectionId, Receiving> received_;
  std::optional<Fetch> fetch_;
  Instant may_send_at_;
  std::string last_fault_;
  snapshot::CopyReport reported_;
  snapshot::CopiesEvent shown_;
  os::Timer pace_;
  os::Timer retry_;
  os::Timer fetch_limit_;
};

}  // namespace elastic::host
