// What of a simulated job depends on the keeper of its record.

#include <utility>
#include <variant>

#include "sim/succession_world_impl.h"

namespace elastic::test {

void SuccessionWorld::begin_machine(std::size_t slot,
                                    const std::optional<reg::LineageId>& lineage) {
  Process& process = processes_[slot];
  process.steps.clear();
  process.is_busy = false;
  if (has_store()) return open_store(slot);
  succession::Settings settings;
  settings.lineage = lineage;
  settings.job_id = kJobId;
  settings.self = {process.id, is_witness(slot) ? "" : voter_address(slot)};
  settings.is_standalone = slot == kCoordinatorSlot;
  settings.reg.voters = has(kOneVoter) ? 1 : 0;
  settings.reg.store_grace = kStoreGrace;
  settings.node_timeout = kNodeTimeout;
  process.machine = std::make_unique<succession::VoterKeeper>(settings, dice_.next());
  if (is_witness(slot)) {
    process.witness = std::make_unique<succession::WitnessedJob>(kJobId, dice_.next());
  }
}

// A process and its node have different ids.
void SuccessionWorld::open_store(std::size_t slot) {
  Process& process = processes_[slot];
  auto machine = std::make_unique<succession::StoreKeeper>(
      succession::StoreKeeper::Settings{.store = "memory",
                                        .self = {100 + slot, process.life},
                                        .node_timeout = kNodeTimeout,
                                        .store_grace = kStoreGrace},
      dice_.next(), clock_.now());
  machine->set_node(process.id);
  process.kept = machine.get();
  process.machine = std::move(machine);
  process.store =
      store_.open([this, slot] { return !cuts_.has_any(slot, kStoreSlot); },
                  [this, slot](SimStore::Answer answer) { answered(slot, std::move(answer)); });
}

void SuccessionWorld::answered(std::size_t slot, SimStore::Answer answer) {
  if (!processes_[slot].is_alive) return;
  run_step(slot, [this, slot, answer = std::move(answer)](auto* actions) {
    succession::StoreKeeper& machine = *processes_[slot].kept;
    const Instant now = clock_.now();
    if (const auto* read = std::get_if<Result<std::optional<StoredState>>>(&answer)) {
      machine.read(*read, now, actions);
    } else if (const auto* written = std::get_if<Result<StoredWrite>>(&answer)) {
      machine.written(*written, now, actions);
    } else {
      machine.waited(std::get<bool>(answer), now, actions);
    }
  });
}

void SuccessionWorld::call_store(std::size_t slot) {
  Process& process = processes_[slot];
  if (const auto call = process.kept->next_call()) process.store->call(*call);
  if (process.kept->must_interrupt()) process.store->interrupt();
}

std::optional<std::string> SuccessionWorld::recorded(const SimAgent& agent) {
  if (!has_store()) return std::nullopt;
  return processes_[slot_of(agent)].kept->address();
}

bool SuccessionWorld::refuses(const SimAgent& agent, const std::string& address) {
  if (!has_store()) return false;
  const auto to = static_cast<std::size_t>(address[1] - '0');
  return !cuts_.has_any(slot_of(agent), to) && !hosts_down_.contains(to) &&
         server_at(address) == kSlots;
}

void SuccessionWorld::absent(const SimAgent& agent, const std::string& address, bool was_closed) {
  if (has_store()) feed(slot_of(agent), succession::Unreachable{address, true, was_closed});
}

void SuccessionWorld::round_started(const SimAgent& agent, int rank) {
  if (has_store()) processes_[slot_of(agent)].kept->set_rank(rank);
}

// Its process goes on with a job that is over, and with the register.
void SuccessionWorld::end_coordinator(const SimAgent& agent, std::function<void()> done) {
  Process& process = processes_[slot_of(agent)];
  if (!has_store()) return done();
  if (process.machine->is_coordinator() && !process.server->is_over()) {
    process.on_stopped = std::move(done);
    return feed(slot_of(agent), succession::Resign{});
  }
  if (!process.machine->is_coordinator()) feed(slot_of(agent), succession::Resign{});
  done();
}

// So does its process, unless others need its coordinator.
void SuccessionWorld::ended(const SimAgent& agent) {
  if (!has_store()) return;
  const std::size_t slot = slot_of(agent);
  clock_.after(0s, [this, slot, life = processes_[slot].life] {
    if (processes_[slot].life == life && !is_serving(slot)) crash(slot, false);
  });
}

void SuccessionWorld::resign(std::size_t slot) {
  if (!has_store()) {
    if (has(kOneVoter)) processes_[slot].server->begin_record();
    return feed(slot, succession::Resign{});
  }
  if (processes_[slot].is_alive && processes_[slot].agent->is_alive()) {
    processes_[slot].agent->leave();
  }
}

}  // namespace elastic::test
