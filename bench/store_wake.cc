// Measures how long a blocked WAIT takes to wake: from just before another connection writes the
// SET until the waiter has read its reply.
//
//   store_wake --port N [--count N]             a TCPStore server
//   store_wake --port N [--count N] --echo 1    the bare echo server: round trips only
//
// Between the wakes it measures bare round trips (PING, or an echo of as many bytes) in the same
// loop, so both are measured under the same conditions. Prints one JSON object.

#include <cstdio>
#include <vector>

#include "common.h"
#include "core/store/wire.h"
#include "traffic.h"

namespace {

namespace wire = elastic::wire;

using Sample = std::vector<std::int64_t>;

std::int64_t round_trip_ns(int fd, const std::string& request, std::size_t reply_bytes) {
  const std::int64_t begun = bench::monotonic_ns();
  bench::send_all(fd, request);
  bench::receive(fd, reply_bytes);
  return bench::monotonic_ns() - begun;
}

std::int64_t wake_ns(int waiter, int setter, std::int64_t number) {
  const std::string key = "/wake/" + std::to_string(number);
  std::string wait;
  wire::append_list_header(&wait, wire::Opcode::kWait, 1);
  wire::append_bytes(&wait, key);
  // The server answers the PING after the WAIT while the WAIT is open, which proves that it is
  // open.
  wire::append_ping(&wait, 1);
  bench::send_all(waiter, wait);
  bench::receive(waiter, sizeof(std::uint32_t));
  std::string set;
  wire::append_key_value_request(&set, wire::Opcode::kSet, key, "1");

  const std::int64_t begun = bench::monotonic_ns();
  bench::send_all(setter, set);
  bench::receive(waiter, 1);
  return bench::monotonic_ns() - begun;
}

void print(const char* name, Sample* sample, const char* end) {
  std::printf("\"%s_p50_us\": %.2f, \"%s_p99_us\": %.2f%s", name,
              bench::quantile(sample, 0.5) / 1e3, name, bench::quantile(sample, 0.99) / 1e3, end);
}

}  // namespace

int main(int argc, char** argv) {
  bench::Flags flags(argc, argv);
  const auto port = static_cast<std::uint16_t>(flags.number("port", 0));
  const std::int64_t count = flags.number("count", 2000);
  const bool echo = flags.number("echo", 0) != 0;
  flags.done();

  std::string ping;
  wire::append_ping(&ping, 1);
  constexpr std::size_t kPingReply = sizeof(std::uint32_t);
  const bench::Traffic traffic(echo ? bench::Protocol::kEcho : bench::Protocol::kTcpStore,
                               bench::Kind::kPing, 1);
  const int waiter = traffic.connect(port);
  const int setter = traffic.connect(port);

  Sample wakes;
  Sample round_trips;
  for (std::int64_t i = 0; i < count; ++i) {
    if (!echo) wakes.push_back(wake_ns(waiter, setter, i));
    round_trips.push_back(round_trip_ns(setter, ping, kPingReply));
  }
  std::printf("{");
  if (!echo) print("wake", &wakes, ", ");
  print("round_trip", &round_trips, "}\n");
  return 0;
}
