// A load generator for key-value servers: one thread, epoll, C connections that each keep one batch
// of P requests in flight.
//
//   store_load --protocol tcpstore|redis|echo --kind get|set|add|check|ping --port N --pid SERVER
//              [--connections C] [--pipeline P] [--seconds S] [--warmup S]
//
// It reads the server's CPU clock at both ends of its window, so that connecting, filling and
// warming up are excluded. Prints one JSON object.

#include <cerrno>
#include <cstdio>
#include <vector>

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common.h"
#include "traffic.h"

namespace {

struct Options {
  std::string protocol;
  std::string kind;
  std::uint16_t port = 0;
  pid_t server = 0;
  std::size_t connections = 64;
  std::size_t pipeline = 1;
  double seconds = 1;
  double warmup = 0.1;
};

Options options_from(bench::Flags flags) {
  Options options;
  options.protocol = flags.text("protocol", "tcpstore");
  options.kind = flags.text("kind", "get");
  options.port = static_cast<std::uint16_t>(flags.number("port", 0));
  options.server = static_cast<pid_t>(flags.number("pid", 0));
  options.connections = static_cast<std::size_t>(flags.number("connections", 64));
  options.pipeline = static_cast<std::size_t>(flags.number("pipeline", 1));
  options.seconds = flags.real("seconds", 1);
  options.warmup = flags.real("warmup", 0.1);
  flags.done();
  return options;
}

struct Connection {
  int fd = -1;
  std::size_t batch = 0;       // the batch in flight
  std::size_t units_left = 0;  // missing replies of that batch
  std::int64_t sent_at = 0;
};

class Load {
 public:
  Load(const bench::Traffic& traffic, std::uint16_t port, std::size_t connections)
      : traffic_(traffic),
        epoll_(bench::check(epoll_create1(EPOLL_CLOEXEC), "epoll_create1")),
        connections_(connections) {
    for (std::size_t i = 0; i < connections; ++i) {
      connections_[i].fd = traffic.connect(port);
      // Each connection begins at different keys.
      connections_[i].batch = i * traffic.batches().size() / connections;
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = i;
      bench::check(epoll_ctl(epoll_, EPOLL_CTL_ADD, connections_[i].fd, &event), "epoll_ctl");
    }
  }

  void start() {
    const std::int64_t now = bench::monotonic_ns();
    for (Connection& connection : connections_) send_next(&connection, now);
  }

  // Generates load for this time.
  void run(double seconds) {
    const std::int64_t end = bench::monotonic_ns() + static_cast<std::int64_t>(seconds * 1e9);
    std::vector<epoll_event> events(connections_.size());
    std::int64_t now = 0;
    do {
      const int ready = epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), 1000);
      if (ready < 0 && errno != EINTR) bench::die("epoll_wait");
      now = bench::monotonic_ns();
      for (int i = 0; i < ready; ++i) {
        Connection* connection = &connections_[events[static_cast<std::size_t>(i)].data.u64];
        if (receive_some(connection, now)) send_next(connection, now);
      }
    } while (now < end);
  }

  // Reads outstanding replies, so that the server does not write to closed connections.
  void drain() {
    for (Connection& connection : connections_) {
      while (!receive_some(&connection, 0)) {
      }
      close(connection.fd);
    }
  }

  std::vector<std::int64_t>* latencies() { return &latencies_; }

 private:
  void send_next(Connection* connection, std::int64_t now) {
    connection->batch = (connection->batch + 1) % traffic_.batches().size();
    const bench::Batch& batch = traffic_.batches()[connection->batch];
    connection->units_left = batch.reply_units;
    connection->sent_at = now;
    bench::send_all(connection->fd, batch.bytes);
  }

  // True when the batch in flight has been answered.
  bool receive_some(Connection* connection, std::int64_t now) {
    char buffer[65536];
    const ssize_t size = recv(connection->fd, buffer, sizeof buffer, 0);
    if (size <= 0) bench::die("the server closed a connection");
    const std::size_t units = traffic_.count_units({buffer, static_cast<std::size_t>(size)});
    if (units > connection->units_left) bench::die("the server sent more replies than requests");
    connection->units_left -= units;
    if (connection->units_left > 0) return false;
    latencies_.push_back(now - connection->sent_at);
    return true;
  }

  const bench::Traffic& traffic_;
  const int epoll_;
  std::vector<Connection> connections_;
  std::vector<std::int64_t> latencies_;
};

constexpr int kMaxRuns = 100;

double seconds_since(std::int64_t begun_ns, std::int64_t now_ns) {
  return static_cast<double>(now_ns - begun_ns) / 1e9;
}

}  // namespace

int main(int argc, char** argv) {
  const Options options = options_from(bench::Flags(argc, argv));
  const bench::Traffic traffic(bench::protocol_named(options.protocol),
                               bench::kind_named(options.kind), options.pipeline);
  traffic.prepare(options.port);
  Load load(traffic, options.port, options.connections);
  load.start();
  load.run(options.warmup);
  load.latencies()->clear();

  const std::int64_t begun = bench::monotonic_ns();
  const std::int64_t server_begun = bench::cpu_ns(options.server);
  const std::int64_t own_begun = bench::cpu_ns(getpid());
  double server_cpu = 0;
  // On a machine with other load, a short time may pass without a time slice of the server.
  for (int runs = 0; server_cpu <= 0; ++runs) {
    if (runs == kMaxRuns) bench::die("the server used no CPU time");
    load.run(options.seconds);
    server_cpu = seconds_since(server_begun, bench::cpu_ns(options.server));
  }
  const double own_cpu = seconds_since(own_begun, bench::cpu_ns(getpid()));
  const double seconds = seconds_since(begun, bench::monotonic_ns());

  const std::size_t requests = load.latencies()->size() * options.pipeline;
  if (requests == 0) bench::die("no request was answered");
  const double p50_us = bench::quantile(load.latencies(), 0.5) / 1e3;
  const double p99_us = bench::quantile(load.latencies(), 0.99) / 1e3;
  load.drain();

  const auto count = static_cast<double>(requests);
  std::printf(
      "{\"requests\": %zu, \"seconds\": %.6f, \"server_cpu_s\": %.6f, \"load_cpu_s\": %.6f, "
      "\"requests_per_s\": %.1f, \"requests_per_server_cpu_s\": %.1f, "
      "\"batch_p50_us\": %.2f, \"batch_p99_us\": %.2f}\n",
      requests, seconds, server_cpu, own_cpu, count / seconds, count / server_cpu, p50_us, p99_us);
  return 0;
}
