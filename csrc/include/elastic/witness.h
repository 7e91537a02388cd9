#pragma once

// A witness: a voter on a further machine, so that a job of two nodes has a majority
// (docs/high-availability.md).
//
//   auto witness = elastic::Witness::start({.host = "", .port = 29500});
//
// It keeps the records of any number of jobs and votes when a job has lost its coordinator. It
// never coordinates a job and runs no workers. One native thread; any member from any thread.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "elastic/export.h"
#include "elastic/status.h"
#include "elastic/token_options.h"

namespace elastic {

struct WitnessOptions {
  std::string host = "127.0.0.1";  // the address to bind; "": every interface
  std::uint16_t port = 0;
  // The tokens of its jobs: only nodes that prove one of them are answered.
  TokenOptions token = {};
  // Receives one log line for each event. Called on the witness's thread; must not block.
  std::function<void(std::string_view line)> log = {};
};

class ELASTIC_EXPORT Witness {
 public:
  // Binds, listens and starts the thread. Errors: as StoreServer::start, and kInvalidArgument
  // or kFailedPrecondition for the token.
  static Result<std::unique_ptr<Witness>> start(const WitnessOptions& options);
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;
  ~Witness();

  std::uint16_t port() const;
  const std::string& host() const;

 private:
  class Impl;
  explicit Witness(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
