// elastic's store server in a separate process, for the benchmarks. Prints its port and runs until
// standard input closes.

#include <cstdio>

#include <unistd.h>

#include "elastic/store_server.h"

int main() {
  auto server = elastic::StoreServer::start({.host = "127.0.0.1", .port = 0, .limits = {}});
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
