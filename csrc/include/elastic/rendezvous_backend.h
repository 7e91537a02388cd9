#pragma once

// A store that keeps the record of a job: one value with compare-and-set. The record names the
// job's coordinator, with which the nodes hold sessions, and has what a successor needs.
//
//   options.rendezvous.backend = elastic::make_store_backend(
//       {.host = "store.cluster", .port = 29500, .run_id = "job 7"});
//
// Built in are a key of a TCPStore server, and a file. Implement it over any other storage that can
// replace a value on condition that it has not changed since it was read. The bytes are opaque, at
// most 16 MiB; no two versions are equal. Who can write to the storage decides where the
// coordinator is: restrict write access.
//
// Thread rule: one thread at a time, not always the same one. Calls may block: an agent makes them
// on a separate thread. The agent that runs the coordinator reads again and again, and writes each
// decision before it is sent; the others call only while they have no coordinator. A slow store
// delays rounds, and never heartbeats.

#include <chrono>
#include <cstdint>
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

struct StoreBackendOptions {
  std::string host;  // a name or a literal address; resolved again for every attempt
  std::uint16_t port = 0;
  std::string run_id;
  Duration call_timeout = std::chrono::seconds(5);  // for one call, connecting included
};

// Keeps the record under the key "elastic/rendezvous/<run id>" of a TCPStore server, PyTorch's or
// elastic's own. Connects with the first call, and reconnects when the connection is broken.
ELASTIC_EXPORT std::shared_ptr<RendezvousBackend> make_store_backend(StoreBackendOptions options);

struct FileBackendOptions {
  std::string path;
  std::string run_id;
  Duration call_timeout = std::chrono::seconds(5);  // for the lock
};

// Keeps the record in the file "<path>.<run id>", which all nodes must share. The writers lock
// "<path>.<run id>.lock" (flock); an NFS server must support locks and hard links, and a client of
// NFS 3 must not cache names (lookupcache=none). A write is flushed to the disk. The file may
// remain after the job: the next job with the same run id begins a new generation.
ELASTIC_EXPORT std::shared_ptr<RendezvousBackend> make_file_backend(
    const FileBackendOptions& options);

// Where the coordinator of the job accepts sessions, as its record in the store says: host:port,
// for an Observer. "": no process coordinates it now. The call may block. kNotFound: the store has
// no such job; kPeerViolation: it has other bytes; kUnavailable: it cannot be reached.
ELASTIC_EXPORT Result<std::string> find_coordinator(RendezvousBackend* store);

}  // namespace elastic
