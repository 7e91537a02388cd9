#pragma once

// A key-value store server with the wire protocol of PyTorch's TCPStore.
//
//   auto server = elastic::StoreServer::start({.host = "127.0.0.1", .port = 0});
//   if (!server.ok()) return report(server.status());
//   connect_workers_to((*server)->port());
//
// One native thread serves all connections (epoll); it never blocks and never resolves a name.
// Keys are kept in memory only. An unmodified torch.distributed.TCPStore client (is_master=False)
// connects to it.
//
// Thread rule: every member may be called from any thread. In a child after fork() close() and the
// destructor do nothing: the server runs in the parent.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "elastic/export.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic {

// A connection that exceeds a limit is closed. Every limit is checked before memory is allocated;
// the defaults accept everything that torch 2.13's server accepts.
struct StoreLimits {
  // One key, with the "/" that PyTorch's client prepends. torch's server has the same limit.
  std::size_t key_bytes_max = 8192;
  // One value as it arrives. APPEND may grow a stored value beyond it, up to total_bytes_max.
  std::size_t value_bytes_max = 8u << 20;
  // Keys in one CHECK, WAIT, MULTI_GET or MULTI_SET.
  std::size_t item_count_max = 131072;
  // One whole request: the server buffers at most this much of an incomplete one.
  std::size_t frame_bytes_max = 64u << 20;
  // Replies that a client has not read. Beyond it the connection is closed, because a slow reader
  // would otherwise use up the server's memory.
  std::size_t output_bytes_max = 64u << 20;
  // Keys, values, queues and buffers of all connections together. A request that would exceed it
  // changes nothing, and its connection is closed.
  std::size_t total_bytes_max = std::size_t{4} << 30;
  // Connections at one time; the next one is closed at once.
  std::size_t connections_max = 131072;
  // A connection that has not sent VALIDATE by then is closed.
  Duration validate_timeout = std::chrono::seconds(30);
  // Connections of one address that have not sent VALIDATE or, as sessions with a coordinator,
  // their hello. One more closes the oldest of them. 0: a quarter of what this process can have.
  std::size_t pending_per_address_max = 0;
  // Descriptors that clients leave to the rest of the process (at most a quarter of its limit).
  std::size_t descriptors_reserved = 32;
};

struct StoreServerOptions {
  // The address to bind: a literal IPv4 or IPv6 address (brackets allowed), a name (its first
  // address), or "" for every interface, both families. A literal is bound exactly: 127.0.0.1 is
  // loopback only, :: is IPv6 only.
  std::string host = "127.0.0.1";
  // 0: any free port; port() returns it.
  std::uint16_t port = 0;
  StoreLimits limits = {};
};

// Counters since the start, for tests, benchmarks and status pages.
struct StoreServerStats {
  std::uint64_t connections = 0;           // open now
  std::uint64_t connections_total = 0;     // accepted since the start
  std::uint64_t connections_rejected = 0;  // closed for a protocol violation or a limit
  std::uint64_t requests = 0;
  std::uint64_t keys = 0;
  std::uint64_t bytes = 0;  // keys, values and buffers held now
};

class ELASTIC_EXPORT StoreServer {
 public:
  // Binds, listens and starts the thread. Errors: kInvalidArgument (host is not an address of this
  // machine or does not resolve), kUnavailable (port in use; the message names the owner's pid if
  // the kernel shows it), kResourceExhausted.
  static Result<std::unique_ptr<StoreServer>> start(const StoreServerOptions& options);

  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  ~StoreServer();  // close(0)

  std::uint16_t port() const;
  const std::string& host() const;  // the numeric address that is bound
  StoreServerStats stats() const;

  // Stops accepting, handles received requests and flushes replies for at most `drain`, closes
  // every connection and joins the thread. Further calls do nothing.
  void close(Duration drain = Duration::zero());

 private:
  class Impl;
  explicit StoreServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
