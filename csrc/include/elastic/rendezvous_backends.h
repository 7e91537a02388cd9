#pragma once

// The shared states that come with elastic: a TCPStore server that only stores, and a file.
//
//   options.rendezvous.backend = elastic::make_store_backend({.host = "store.cluster", .port =
//   29500,
//                                                             .run_id = "job 7"});
//
// Whoever can write to the server or the file is believed: keep both among friends.

#include <cstdint>
#include <memory>
#include <string>

#include "elastic/export.h"
#include "elastic/rendezvous_backend.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic {

struct StoreBackendOptions {
  std::string host;  // a name or a literal address, looked up anew for every attempt
  std::uint16_t port = 0;
  std::string run_id;
  Duration call_timeout = std::chrono::seconds(5);  // for one call, connecting included
};

// The state under one key of a TCPStore server, PyTorch's or elastic's own: "elastic/rendezvous/"
// and the run id. It connects with the first call, and again whenever the connection is broken.
ELASTIC_EXPORT std::shared_ptr<RendezvousBackend> make_store_backend(StoreBackendOptions options);

struct FileBackendOptions {
  std::string path;
  std::string run_id;
  Duration call_timeout = std::chrono::seconds(5);  // for the lock
};

// The state in a file that all nodes see: "<path>.<run id>", with "<path>.<run id>.lock" beside it,
// whose lock (flock) orders the writers. Works over NFS where the server keeps locks. What a job
// leaves there is taken for what it is: the next one with this id begins a new generation.
ELASTIC_EXPORT std::shared_ptr<RendezvousBackend> make_file_backend(
    const FileBackendOptions& options);

}  // namespace elastic
