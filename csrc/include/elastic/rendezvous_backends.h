#pragma once

// The built-in stores that can keep a job's record: a key of a TCPStore server, and a file.
//
//   options.rendezvous.backend = elastic::make_store_backend(
//       {.host = "store.cluster", .port = 29500, .run_id = "job 7"});
//
// Who can write to the store decides where the coordinator is: restrict access to the server, and
// write access to the file.

#include <cstdint>
#include <memory>
#include <string>

#include "elastic/export.h"
#include "elastic/rendezvous_backend.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic {

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
// "<path>.<run id>.lock" (flock); NFS works if the server supports locks. The file may remain after
// the job: the next job with the same run id begins a new generation.
ELASTIC_EXPORT std::shared_ptr<RendezvousBackend> make_file_backend(
    const FileBackendOptions& options);

// Where the coordinator of the job accepts sessions, as its record in the store says: host:port,
// for an Observer. "": no process coordinates it now. The call may block. kNotFound: the store has
// no such job; kPeerViolation: it has other bytes; kUnavailable: it cannot be reached.
ELASTIC_EXPORT Result<std::string> find_coordinator(RendezvousBackend* store);

}  // namespace elastic
