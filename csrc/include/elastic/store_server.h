#pragma once

// A key-value store server that speaks the wire protocol of PyTorch's TCPStore.
//
//   auto server = elastic::StoreServer::start({.host = "127.0.0.1", .port = 0});
//   if (!server.ok()) return report(server.status());
//   connect_workers_to((*server)->port());
//
// One native thread serves all connections (epoll); nothing in it blocks, and no name is looked up.
// Keys live in memory and end with the server. An unmodified torch.distributed.TCPStore client
// (is_master=False) connects to it.
//
// Thread rule: every member may be called from any thread. In a child after fork() there is no
// server: close() and the destructor do nothing there.

#include <cstdint>
#include <memory>
#include <string>

#include "elastic/export.h"
#include "elastic/status.h"
#include "elastic/store_options.h"
#include "elastic/time.h"

namespace elastic {

struct StoreServerOptions {
  // What to bind: a literal IPv4 or IPv6 address (brackets allowed), a name (its first address), or
  // "" for every interface, both families. A literal is bound exactly: 127.0.0.1 is loopback only,
  // :: is IPv6 only.
  std::string host = "127.0.0.1";
  // 0: any free port, told by port().
  std::uint16_t port = 0;
  StoreLimits limits = {};
};

// Counters since the start, for tests, benchmarks and status pages.
struct StoreServerStats {
  std::uint64_t connections = 0;           // open now
  std::uint64_t connections_total = 0;     // accepted since the start
  std::uint64_t connections_rejected = 0;  // closed for breaking the protocol or a limit
  std::uint64_t requests = 0;
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // keys, values and buffers held now
};

class ELASTIC_EXPORT StoreServer {
 public:
  // Binds, listens and starts the thread. Errors: kInvalidArgument (host is no address of this
  // machine or not resolvable), kUnavailable (port taken; the message names the owner's pid where
  // the kernel tells it), kResourceExhausted.
  static Result<std::unique_ptr<StoreServer>> start(const StoreServerOptions& options);

  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();  // close(0)

  std::uint16_t port() const;
  const std::string& host() const;  // the numeric address that is bound
  StoreServerStats stats() const;

  // Stops accepting, gives requests that have arrived and replies that are on their way up to
  // `drain` to be finished, closes every connection and joins the thread. Further calls do nothing.
  void close(Duration drain = Duration::zero());

 private:
  class Impl;
  explicit StoreServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
