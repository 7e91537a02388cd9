// Fills a server with connections or keys, so that its memory can be measured.
//
//   store_fill --protocol tcpstore|redis --port N --connections N    idle, each used once
//   store_fill --protocol tcpstore|redis --port N --keys N           of 17 bytes, with 32 bytes
//
// Prints "ready" when the server has answered everything, and runs until standard input closes.

#include <cstdio>
#include <string>
#include <string_view>

#include <unistd.h>

#include "common.h"
#include "traffic.h"

namespace {

constexpr std::int64_t kKeysPerWrite = 500;
constexpr std::string_view kRedisOk = "+OK\r\n";

std::string key_name(std::int64_t key) {
  char name[32];
  std::snprintf(name, sizeof name, "/fill/%011lld", static_cast<long long>(key));
  return name;
}

// Waits until the server has answered a PING, and therefore all earlier requests.
void wait_for_reply(const bench::Traffic& pings, int fd) {
  const bench::Batch& ping = pings.batches().front();
  bench::send_all(fd, ping.bytes);
  for (std::size_t units = 0; units < ping.reply_units;) {
    units += pings.count_units(bench::receive(fd, 1));
  }
}

void open_connections(bench::Protocol protocol, std::uint16_t port, std::int64_t count) {
  const bench::Traffic pings(protocol, bench::Kind::kPing, 1);
  for (std::int64_t i = 0; i < count; ++i) wait_for_reply(pings, pings.connect(port));
}

void set_keys(bench::Protocol protocol, std::uint16_t port, std::int64_t count) {
  const bench::Traffic pings(protocol, bench::Kind::kPing, 1);
  const std::size_t reply_bytes = protocol == bench::Protocol::kRedis ? kRedisOk.size() : 0;
  const int fd = pings.connect(port);
  for (std::int64_t key = 0; key < count;) {
    std::string requests;
    std::int64_t sets = 0;
    for (; sets < kKeysPerWrite && key < count; ++sets) {
      requests += bench::set_request(protocol, key_name(key++));
    }
    bench::send_all(fd, requests);
    bench::receive(fd, static_cast<std::size_t>(sets) * reply_bytes);
  }
  wait_for_reply(pings, fd);
  // Close the connection, so that its buffers are not counted.
  close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Flags flags(argc, argv);
  const bench::Protocol protocol = bench::protocol_named(flags.text("protocol", "tcpstore"));
  const auto port = static_cast<std::uint16_t>(flags.number("port", 0));
  const std::int64_t connections = flags.number("connections", 0);
  const std::int64_t keys = flags.number("keys", 0);
  flags.done();

  open_connections(protocol, port, connections);
  if (keys > 0) set_keys(protocol, port, keys);
  std::printf("ready\n");
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
