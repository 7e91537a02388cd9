// The invariants: a state that a machine accepts can be encoded and decodes to the same state, and
// the machine can take any step with it; a state that it refuses changes nothing. The same holds
// for the record from which an elected coordinator continues a job.
//
// The first byte of the input chooses how the bytes are loaded, and which bytes: the rest of the
// input, or the state of a job that the next bytes drive, with integers that they overwrite. Run:
// rendezvous_decoder_fuzz tests/cpp/fuzz/rendezvous_corpus -max_total_time=60

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/check.h"
#include "core/gate/host_memory.h"
#include "core/rendezvous/rendezvous_machine.h"
#include "core/succession/job_record.h"

namespace {

using namespace elastic;
using namespace std::chrono_literals;

constexpr std::uint64_t kNodes = 5;
constexpr std::size_t kEventsMax = 32;
const Instant kBegin = Instant(1000s);

class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  bool is_empty() const { return size_ == 0; }
  std::uint8_t next() {
    if (is_empty()) return 0;
    --size_;
    return *data_++;
  }
  std::string rest() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

JobSettings job_settings() {
  JobSettings settings;
  settings.min_nodes = 1;
  settings.max_nodes = 3;
  settings.max_restarts = 2;
  settings.last_call_timeout = settings.settle = 1s;
  settings.restart_backoff = 0s;
  settings.extra = {{"version", "1"}};
  return settings;
}

core::NodeInfo node(std::uint64_t number, std::uint64_t highest_round) {
  core::NodeInfo info;
  info.id = {1, number};
  info.name = "node" + std::to_string(number);
  info.address = "10.0.0." + std::to_string(number);
  info.local_world_size = 2;
  info.highest_round = highest_round;
  return info;
}

// A machine and its time; what it sends is not looked at.
struct Job {
  explicit Job(const JobSettings& given) : settings(given), machine(given, kBegin, 0s) {
    machine.set_host_gate(hosts.get());
  }

  void step(const core::RendezvousEvent& event) {
    std::vector<core::RendezvousAction> actions;
    machine.step(event, now, &actions);
  }
  void step(std::uint8_t kind, std::uint64_t number) {
    const std::uint64_t round = machine.record().round;
    const NodeId id{1, number};
    switch (kind % 12) {
      case 0:
      case 1: return step(rdzv::Join{node(number, round), settings});
      case 2: return step(rdzv::Gone{id, round});
      case 3: return step(rdzv::Done{id, round});
      case 4: return step(rdzv::Failed{id, round, {0, 1, 9, "exited with code 9", now, {}}});
      case 5: return step(rdzv::Leave{id, "SIGTERM"});
      case 6: return step(rdzv::SessionLost{id, {}});
      case 7: return step(rdzv::Heartbeat{id});
      case 8: return step(rdzv::ClockGap{10s});
      case 9: return resume(number, static_cast<rdzv::NodePhase>(kind / 12 % 4));
      case 10: return step(rdzv::ProcessEnded{id});
      default:
        if (kind >= 48) return step(rdzv::HostBad{"node" + std::to_string(number)});
        if (kind >= 24) {
          hosts->exclude("node" + std::to_string(number), "a fault", now);
          return step(rdzv::HostsChanged{});
        }
        now += std::chrono::seconds(kind);
        return step(rdzv::Tick{});
    }
  }
  void resume(std::uint64_t number, rdzv::NodePhase phase) {
    rdzv::Resume resume;
    resume.node = node(number, machine.record().round);
    resume.settings = settings;
    resume.phase = phase;
    if (machine.record().round > 0) {
      resume.last = core::HeldRound{machine.record(), static_cast<int>(number % kNodes)};
    }
    step(resume);
  }
  void describe_all() {
    machine.nodes(now);
    machine.describe(now);
  }

  JobSettings settings;
  Instant now = kBegin;
  std::unique_ptr<gate::HostMemory> hosts = std::make_unique<gate::HostMemory>();
  core::RendezvousMachine machine;
};

std::string driven_state(Input* input, bool* is_genuine) {
  Job job(job_settings());
  for (std::size_t events = input->next() % kEventsMax; events > 0; --events) {
    const std::uint8_t kind = input->next();
    job.step(kind, input->next() % kNodes);
  }
  std::string bytes = job.machine.encode();
  while (!input->is_empty()) {
    *is_genuine = false;
    const std::size_t at = (input->next() + 256U * input->next()) % bytes.size();
    const auto width = std::size_t{1} << (input->next() % 4);  // of a little-endian integer
    const auto value = static_cast<std::int8_t>(input->next());
    std::string integer;
    core::append_integer(&integer, static_cast<std::int64_t>(value));
    bytes.replace(at, std::min(width, bytes.size() - at), integer, 0,
                  std::min(width, bytes.size() - at));
  }
  return bytes;
}

void use(Job job) {
  const std::string once = job.machine.encode();
  Job again(job.settings);
  ELASTIC_CHECK(again.machine.load(once, kBegin).ok());
  ELASTIC_CHECK(again.machine.encode() == once);
  job.describe_all();
  for (std::uint8_t kind = 0; kind < 44; ++kind) {
    job.step(kind, kind % kNodes);
    job.describe_all();
  }
  for (int turn = 0; turn < 8 && job.machine.next_deadline(); ++turn) {
    job.now = std::max(job.now, std::min(*job.machine.next_deadline(), job.now + 100s));
    job.step(rdzv::Tick{});
  }
  job.describe_all();
}

void run_state(std::string_view bytes, std::uint8_t how, bool is_genuine) {
  Job job(job_settings());
  const std::string before = job.machine.encode();
  const Status status = how == 0   ? job.machine.load(bytes, kBegin)
                        : how == 1 ? job.machine.restore(bytes, kBegin)
                                   : job.machine.succeed(bytes, {2, {1, 1}, {1, 0}}, kBegin);
  ELASTIC_CHECK(status.ok() || !is_genuine);
  if (status.ok()) {
    use(std::move(job));
  } else {
    ELASTIC_CHECK(job.machine.encode() == before);
  }
}

void run_record(std::string_view bytes) {
  const auto record = succession::decode_record(bytes);
  if (!record.ok()) return;
  const std::string once = succession::encode_record(*record);
  const auto again = succession::decode_record(once);
  ELASTIC_CHECK(again.ok() && succession::encode_record(*again) == once);
  Job job(record->settings);
  if (job.machine.succeed(record->state, {2, {1, 1}, {1, 0}}, kBegin).ok()) use(std::move(job));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Input input(data, size);
  const std::uint8_t mode = input.next();
  const auto how = static_cast<std::uint8_t>(mode % 4);
  bool is_genuine = mode < 128;
  std::string state = is_genuine ? driven_state(&input, &is_genuine) : input.rest();
  if (how == 3 && mode < 128) {
    state = succession::encode_record(
        {"job", job_settings(), std::move(state), {{{1, 1}, "10.0.0.1:9"}}});
  }
  // A copy of exactly these bytes, so that AddressSanitizer detects reads past the end.
  const std::unique_ptr<char[]> exact(new char[state.size()]);
  std::copy(state.begin(), state.end(), exact.get());
  const std::string_view bytes(exact.get(), state.size());
  if (how == 3) {
    run_record(bytes);
  } else {
    run_state(bytes, how, is_genuine);
  }
  return 0;
}
