#pragma once

// Nodes with the register's machine, on hosts, behind a network that loses, delays, repeats and
// reorders messages and cuts directed links. The owner of each machine is a model: it reports lost
// coordinators and reachable voters, with a delay and sometimes wrongly, and proposes contents.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/register/register_machine.h"
#include "core/register/register_machine_impl.h"
#include "sim/register_checker.h"
#include "sim/sim_clock.h"

namespace elastic::test {

// All rules but one.
struct TestRules {
  std::optional<reg::Rule> deleted = std::nullopt;

  bool has(reg::Rule rule) const { return rule != deleted; }
};

struct RegisterSimOptions {
  std::optional<reg::Rule> deleted = std::nullopt;
  // A node that is started again keeps its id and forgets its promises: deletes R2's "a voter is an
  // incarnation", which is a rule for the machine's owner.
  bool do_restarts_forget = false;
  bool is_traced = false;
};

struct RegisterSimReport {
  std::vector<std::string> violations;
  std::vector<std::string> trace;
  std::uint64_t delivered = 0;
  std::uint64_t elections = 0;
  std::uint64_t crashes = 0;
  bool is_liveness_checked = false;
};

class RegisterWorld {
 public:
  using Machine = reg::BasicRegister<TestRules>;
  static constexpr int kSlots = 8;

  RegisterWorld(std::uint64_t seed, const RegisterSimOptions& options);

  // ---- For scenes.

  Dice& dice() { return dice_; }
  void place(int slot, int host);  // before start()
  void start(int slot);
  // Forms a lineage at this slot.
  void begin(int slot);
  void run(Duration time);
  void crash(int slot);
  void crash_host(int host);
  void restart(int slot);
  void stall(int slot, Duration time);
  void cut(int from, int to, bool is_cut) { cut_[index(from)][index(to)] = is_cut; }
  // Messages are lost, and the owner does not notice.
  void drop(int from, int to, bool is_dropped) { dropped_[index(from)][index(to)] = is_dropped; }
  void heal();
  void set_faulty(bool is_faulty) { is_faulty_ = is_faulty; }  // loss, repetition, long delays
  void set_simultaneous() { is_simultaneous_ = true; }
  // The node leaves its lineage for another one, under the id that it has.
  void change_lineage(int slot, const reg::LineageId& lineage);
  void violate(const std::string& text) { checker_.violations().push_back(text); }

  bool is_alive(int slot) const { return slots_[index(slot)].machine != nullptr; }
  int host_of(int slot) const { return slots_[index(slot)].host; }
  int slot_of(const NodeId& node) const { return static_cast<int>(node.high); }
  bool is_current(const NodeId& node) const;
  // The slot of the coordinator of the newest term in this lineage; -1: none.
  int coordinator(const reg::LineageId& lineage) const;
  const Machine& machine(int slot) const { return *slots_[index(slot)].machine; }
  RegisterChecker& checker() { return checker_; }
  std::uint64_t elections() const { return report_.elections; }
  std::uint64_t depositions() const { return depositions_; }
  std::uint64_t expirations() const { return expirations_; }
  // Whether the live voters suffice to elect a coordinator, whatever they have accepted.
  bool can_recover(const reg::LineageId& lineage) const;
  static reg::LineageId lineage_of(int first_slot);
  RegisterSimReport finish();

  bool does_propose = true;
  reg::RegisterSettings settings;
  double resignation_chance = 0;
  double false_suspicion_chance = 0;
  bool is_coordinator_outside = false;  // slot 0 is no candidate for a vote

 private:
  struct Slot {
    int host = 0;
    std::unique_ptr<Machine> machine;
    reg::Voter self;
    std::uint64_t life = 0;
    std::set<reg::LineageId> former_lineages;  // of this id
    Instant stalled_until;
    std::optional<reg::VoterState> disk;
    std::optional<reg::Content> base;  // of the newest record that it delivered
    std::vector<reg::VoterCandidate> candidates;
    std::optional<Instant> incumbent_down_since;
    bool is_loss_reported = false;
    Instant tick_at = Instant::max();
  };

  static std::size_t index(int slot) { return static_cast<std::size_t>(slot); }
  Slot& at(int slot) { return slots_[index(slot)]; }
  void create(int slot, bool is_same_life);
  void feed(int slot, const reg::Event& event);
  void carry_out(int slot, const std::vector<reg::Action>& actions);
  void carry(const reg::Message& message);
  void arrive(int slot, std::uint64_t life, const reg::Message& message);
  void schedule_tick(int slot);
  void observe(int slot);
  void join_a_coordinator(int slot);
  void observe_incumbent(int slot);
  void observe_voters(int slot);
  void propose(int slot);
  bool are_linked(int a, int b) const;
  bool is_running(int slot) const;
  void trace(const std::string& text);

  const RegisterSimOptions options_;
  Dice dice_;
  SimClock clock_;
  std::array<Slot, kSlots> slots_;
  std::array<std::array<bool, kSlots>, kSlots> cut_{};
  std::array<std::array<bool, kSlots>, kSlots> dropped_{};
  bool is_faulty_ = false;
  bool is_simultaneous_ = false;
  std::uint64_t nonces_ = 0;
  std::uint64_t depositions_ = 0;
  std::uint64_t expirations_ = 0;
  RegisterChecker checker_;
  RegisterSimReport report_;
};

}  // namespace elastic::test
