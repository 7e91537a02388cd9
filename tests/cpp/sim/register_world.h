#pragma once

// Nodes with the register's machine, on hosts, behind a network that loses, delays, repeats and
// reorders messages and cuts directed links. The owner of each machine is a model: it reports lost
// coordinators and reachable voters, with a delay and sometimes wrongly, and proposes contents.

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <vector>

#include "core/register/register_machine.h"
#include "core/register/register_machine_impl.h"
#include "sim/kernel/world.h"
#include "sim/register_checker.h"

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

class RegisterWorld : public SimWorld {
 public:
  using Machine = reg::BasicRegister<TestRules>;
  static constexpr int kSlots = 8;

  RegisterWorld(std::uint64_t seed, const RegisterSimOptions& options);

  SimReport finish();

 protected:
  void start(int slot) { create(slot, false); }
  // Forms a lineage at this slot.
  void begin(int slot);
  void crash(int slot);
  void crash_host(int host);
  void restart(int slot);
  void stall(int slot, Duration time);
  void heal();
  // The node leaves its lineage for another one, under the id that it has.
  void change_lineage(int slot, const reg::LineageId& lineage);

  bool is_alive(int slot) const { return slots_[slot].machine != nullptr; }
  int slot_of(const NodeId& node) const { return static_cast<int>(node.high); }
  bool is_current(const NodeId& node) const;
  // The slot of the coordinator of the newest term in this lineage; -1: none.
  int coordinator(const reg::LineageId& lineage) const;
  const Machine& machine(int slot) const { return *slots_[slot].machine; }
  // Whether the live voters suffice to elect a coordinator, whatever they have accepted.
  bool can_recover(const reg::LineageId& lineage) const;
  static reg::LineageId lineage_of(int first_slot);

  struct Slot {
    int host = 0;
    std::unique_ptr<Machine> machine;
    reg::Voter self;
    std::uint64_t life = 0;
    std::set<reg::LineageId> former_lineages;  // of this id
    Instant stalled_until;
    std::optional<reg::Content> base;  // of the newest record that it delivered
    std::vector<reg::VoterCandidate> candidates;
    std::optional<Instant> incumbent_down_since;
    bool is_loss_reported = false;
    Alarm alarm;
  };

  void create(int slot, bool is_same_life);
  void feed(int slot, const reg::Event& event);
  void carry_out(int slot, const std::vector<reg::Action>& actions);
  void carry(const reg::Message& message);
  void arrive(int slot, std::uint64_t life, const reg::Message& message);
  void set_alarm(int slot);
  void observe(int slot);
  void join_a_coordinator(int slot);
  void observe_incumbent(int slot);
  void observe_voters(int slot);
  void propose(int slot);
  bool are_linked(int a, int b) const;
  bool is_running(int slot) const;

  const RegisterSimOptions options_;
  std::array<Slot, kSlots> slots_;
  Cuts links_;
  Cuts silent_losses_;  // messages are lost, and the owner does not notice
  bool does_propose_ = true;
  reg::RegisterSettings settings_;
  double resignation_chance_ = 0;
  double false_suspicion_chance_ = 0;
  bool is_coordinator_outside_ = false;  // slot 0 is no candidate for a vote
  bool is_faulty_ = false;               // loss, repetition, long delays
  bool is_simultaneous_ = false;
  std::uint64_t nonces_ = 0;
  RegisterChecker checker_{&report_.violations};
};

}  // namespace elastic::test
