#pragma once

// A store that keeps the record of a job: one value with compare-and-set. The record names the
// job's coordinator, with which the nodes hold sessions, and has what a successor needs.
//
// Implement it over any storage that can replace a value on condition that it has not changed since
// it was read. The bytes are opaque, at most 16 MiB; no two versions are equal. Who can write to
// the storage decides where the coordinator is: restrict write access.
//
// Thread rule: one thread at a time, not always the same one. Calls may block: an agent makes them
// on a separate thread. The agent that runs the coordinator reads again and again, and writes each
// decision before it is sent; the others call only while they have no coordinator. A slow store
// delays rounds, and never heartbeats.

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "elastic/export.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic {

struct StoredState {
  std::string bytes;
  std::string token;  // identifies this version; only the backend interprets it
};

struct StoredWrite {
  bool was_set = false;
  StoredState now;  // the stored state: the caller's if was_set, else the one that another node set
};

class ELASTIC_EXPORT RendezvousBackend {
 public:
  virtual ~RendezvousBackend() = default;

  virtual std::string name() const = 0;
  // Returns the stored state; nullopt if none is stored. kUnavailable: not reachable now.
  virtual Result<std::optional<StoredState>> get_state() = 0;
  // Replaces the state if its version is `token`; without a token, if none is stored. A lost race
  // is not an error. kFailedPrecondition: the storage lost its contents (it was restarted).
  virtual Result<StoredWrite> set_state(std::string_view bytes,
                                        const std::optional<std::string>& token) = 0;
  // Waits until the version may differ from `token`, or until the deadline; then returns true.
  // False: this storage has no watch, and the agent that runs the coordinator polls get_state().
  virtual bool wait_for_change(const std::optional<std::string>& token, Instant deadline) {
    (void)token;
    (void)deadline;
    return false;
  }
  // Ends a wait_for_change() in another thread, or the next call if none waits. Any thread.
  virtual void interrupt() {}
  // The address at which other nodes reach this host; "": unknown.
  virtual std::string local_address() { return {}; }
};

}  // namespace elastic
