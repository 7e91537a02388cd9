#pragma once

// Where agents without a coordinator keep the state that they share: a store that is only a store.
//
// Implement it over anything that can replace a value only if it is still the one that was read.
// The bytes are the rendezvous' own, and no two versions are equal; nothing here looks into them.
// Whoever can write to the store is believed.
//
// Thread rule: one thread at a time, not always the same one. Calls may block; an agent makes them
// on a thread of their own, and a call that does not return within the job's node_timeout looks to
// the others like a silent node.

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
  std::string token;  // names this version; opaque to everybody else
};

struct StoredWrite {
  bool was_set = false;
  StoredState now;  // what is stored: ours if was_set, else somebody else's
};

class ELASTIC_EXPORT RendezvousBackend {
 public:
  virtual ~RendezvousBackend() = default;

  virtual std::string name() const = 0;
  // What is stored; nullopt: nothing yet. kUnavailable: the store cannot be reached now.
  virtual Result<std::optional<StoredState>> get_state() = 0;
  // Replaces the version that `token` names; no token: only if there is nothing. A lost race is not
  // an error. kFailedPrecondition: the store has lost what it held (it was restarted).
  virtual Result<StoredWrite> set_state(std::string_view bytes,
                                        const std::optional<std::string>& token) = 0;
  // Returns when the state may have changed from `token`, or at the deadline. False at once: this
  // store cannot watch, and is polled.
  virtual bool wait_for_change(const std::optional<std::string>& token, Instant deadline) {
    (void)token;
    (void)deadline;
    return false;
  }
  // Ends a wait_for_change() of another thread, or the next one if there is none. Any thread.
  virtual void interrupt() {}
  // The address of this host as the store's other users would see it; "": not known.
  virtual std::string local_address() { return {}; }
};

}  // namespace elastic
