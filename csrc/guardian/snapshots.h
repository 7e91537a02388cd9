#pragma once

// The snapshots that the guardian keeps for the ranks of its node: files of memory that workers
// have made, which outlive them. It verifies each when it is complete, a piece at a time between
// its other work.

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/snapshot/copy_wire.h"
#include "core/snapshot/format.h"
#include "core/snapshot/snapshot_types.h"
#include "elastic/time.h"
#include "os/base/fd.h"
#include "os/process/memory_file.h"
#include "worker/snapshot_messages.h"

namespace elastic::guardian {

class Snapshots {
 public:
  // The socket of a worker, whose hello follows on it.
  void connect(os::UniqueFd socket);
  // The agent's end of a socket for AgentPackets (core/snapshot/copy_wire.h).
  void attach(os::UniqueFd socket);
  void keep(const snapshot::KeepRequest& request);
  // A round begins in which workers keep their processes, and go on from a step of their own. They
  // may have other ranks: they connect again, and their snapshots have new files.
  void continue_round();

  // Descriptors that are ready when read() has something to do.
  void add_to(std::vector<pollfd>* polled) const;
  void read();
  // A digest is to be continued by work().
  bool has_work() const { return job_ || !queue_.empty(); }
  void work();
  // The workers have ended: reads what they have left, and verifies the last snapshots. False: call
  // it again after work().
  bool settle();

  // When take_event() has an event that it does not have now.
  std::optional<Instant> deadline() const;
  // What is held, if that has changed; at most once a second unless `at_once`.
  // `notice`: the storage of its text.
  std::optional<snapshot::HeldEvent> take_event(Instant now, bool at_once, std::string* notice);

 private:
  struct Slot {
    os::MemoryFile file;
    std::uint64_t size = 0;    // of the file
    snapshot::Header header;   // of the snapshot that was verified
    std::uint32_t digest = 0;  // of it
    bool is_verified = false;
    std::uint64_t refused = 0;  // the sequence of one that contains NaN
  };
  struct Rank {
    std::uint32_t rank = 0;
    std::uint32_t world = 0;
    os::UniqueFd socket;  // of its worker; invalid: it has ended, or has not connected
    Slot slots[worker::kSlots];
  };
  // A digest that is being computed.
  struct Job {
    std::uint32_t rank = 0;
    std::uint32_t slot = 0;
    snapshot::Header header;
    std::vector<snapshot::Entry> index;
    std::uint64_t at = 0;  // the next byte
    std::uint32_t digest = 0;
    std::size_t next = 0;  // the first entry that does not end before `at`
    bool has_nan = false;
  };
  struct Due {
    std::uint32_t rank = 0;
    std::uint32_t slot = 0;
    bool operator==(const Due&) const = default;
  };

  Rank* find(std::uint32_t rank);
  bool is_point(const Slot& slot) const;
  Slot take_shared(const snapshot::KeepRequest& request);
  void return_shared();
  static Slot* free_slot(Rank* rank);
  void show_shared();
  void release_shared();
  Slot* find(std::uint32_t rank, std::uint32_t slot);
  void read_new(os::UniqueFd* socket);
  bool read_one(Rank* rank);
  void answer_hello(Rank* rank);
  bool read_agent();
  void send_to_agent(const snapshot::AgentPacket& packet, const std::vector<int>& files = {});
  void pin(snapshot::AgentPacket packet);
  bool set_pin(Slot* slot, bool is_pinned);
  bool is_held(const Slot& slot) const;
  bool adopt(const snapshot::AgentPacket& packet, os::UniqueFd file);
  void take_offer(Rank* rank, const worker::SnapshotPacket& packet, os::UniqueFd file);
  void enqueue(std::uint32_t rank, std::uint32_t slot);
  void discard(Slot* slot);
  void begin_job();
  void end_job(bool is_whole);
  bool look(Job* job, const char* bytes, std::size_t size);
  void note(std::string text);

  std::vector<Rank> ranks_;
  os::UniqueFd agent_;
  std::vector<os::UniqueFd> new_sockets_;  // without a hello
  snapshot::KeepRequest round_;            // from which snapshots it continues
  Slot shared_;  // of another rank; not written to, and held until all ranks have a newer one
  std::int64_t hold_ = -1;  // the last one that was requested
  std::deque<Due> queue_;
  std::optional<Job> job_;
  bool is_settling_ = false;
  bool has_changed_ = false;
  std::string notice_;
  Instant sent_at_;
  std::vector<char> buffer_;
};

}  // namespace elastic::guardian
