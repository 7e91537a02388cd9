// The invariants: whatever a peer sends while the network is measured, what is sent in reply is
// bounded, and a measurement ends at its limit with a result.
//
// The input is a list of messages: a byte with the length of the next one, then its bytes. Run:
// probe_decoder_fuzz tests/cpp/fuzz/probe_corpus -max_total_time=60

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "core/base/check.h"
#include "core/gate/probe_exchange.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  namespace gate = elastic::gate;
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  elastic::Instant now(std::chrono::seconds(1));
  gate::ProbeServer server;
  gate::ProbeClient client(1, gate::kProbeOrderLimit, now);
  std::size_t sent = 0;
  while (!rest.empty()) {
    const auto length = std::min<std::size_t>(static_cast<unsigned char>(rest[0]), rest.size() - 1);
    const auto message = gate::decode_probe(rest.substr(1, length));
    rest.remove_prefix(1 + length);
    if (!message) continue;
    ELASTIC_CHECK(gate::decode_probe(gate::encode(*message)) == message);
    for (const std::string& one : server.receive(*message)) sent += one.size();
    now += std::chrono::milliseconds(1);
    client.receive(*message, now);
    for (const std::string& one : client.take()) sent += one.size();
  }
  ELASTIC_CHECK(sent <= 2 * (gate::kProbeBytes + gate::kProbeWindow) + 100 * size);
  while (!client.result()) {
    const auto deadline = client.next_deadline();
    ELASTIC_CHECK(deadline.has_value());
    now = std::max(now, *deadline);
    client.tick(now);
  }
  return 0;
}
