// elastic's store server in a separate process, for the benchmarks.
//
//   store_daemon [--connections-max N]
//
// Prints its port and runs until standard input closes.

#include <cstdio>

#include <unistd.h>

#include "common.h"
#include "elastic/store_server.h"

int main(int argc, char** argv) {
  bench::Flags flags(argc, argv);
  elastic::StoreLimits limits;
  limits.connections_max = static_cast<std::size_t>(
      flags.number("connections-max", static_cast<std::int64_t>(limits.connections_max)));
  flags.done();
  auto server = elastic::StoreServer::start({.host = "127.0.0.1", .port = 0, .limits = limits});
  if (!server.ok()) {
    const std::string message(server.status().message());
    std::fprintf(stderr, "store_daemon: %s\n", message.c_str());
    return 1;
  }
  std::printf("%d\n", (*server)->port());
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
