#pragma once

// The succession machine of one process in virtual time, and frames of the others.

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/succession/voter_keeper.h"

namespace elastic::succession {

using namespace std::chrono_literals;

inline const reg::Voter kFormer{{1, 1}, "10.0.0.1:4711"};
inline const reg::Voter kOther{{2, 2}, "10.0.0.2:4711"};
inline const reg::Voter kSelf{{3, 3}, "10.0.0.3:4711"};
inline const reg::LineageId kLineage{7, 7};

inline reg::Record record_of_three() {
  reg::Record record{.lineage = kLineage,
                     .newness = {1, 1},
                     .proposer = kFormer,
                     .voters = {kFormer, kOther, kSelf},
                     .previous_voters = {},
                     .content = {}};
  record.content.bytes = encode_record({.job_id = "job", .settings = {}, .state = {}, .nodes = {}});
  return record;
}

// Of that record.
inline Incumbent former_coordinator() {
  return {.lineage = kLineage,
          .term = 1,
          .node = kFormer.node,
          .address = "10.0.0.1:29400",
          .voters = record_of_three().voters};
}

enum class Role : std::uint8_t { kAgent, kStandalone };

class Process {
 public:
  explicit Process(const reg::Voter& self, Role role = Role::kAgent,
                   std::optional<reg::LineageId> lineage = std::nullopt)
      : machine_(settings_of(self, role, lineage), 1) {}

  std::vector<Action> feed(const Event& event) {
    std::vector<Action> actions;
    machine_.step(event, now_, &actions);
    return actions;
  }
  std::vector<Action> receive(const reg::Voter& from, const VoterBody& body,
                              const std::string& address = "") {
    return feed(Received{1, encode_frame({"job", from.node, NodeId{}, body}), address});
  }
  std::vector<Action> receive(const reg::Voter& from, const reg::Body& body) {
    return receive(from, reg::Message{kLineage, from.node, kSelf.node, body});
  }
  // Lets the time pass, tick by tick.
  std::vector<Action> pass(Duration time) {
    std::vector<Action> all;
    const Instant end = now_ + time;
    while (machine_.next_deadline() && *machine_.next_deadline() <= end) {
      now_ = std::max(now_, *machine_.next_deadline());
      for (Action& action : feed(Tick{})) all.push_back(std::move(action));
    }
    now_ = end;
    return all;
  }
  VoterKeeper& machine() { return machine_; }

 private:
  static Settings settings_of(const reg::Voter& self, Role role,
                              std::optional<reg::LineageId> lineage) {
    Settings settings;
    settings.lineage = lineage;
    settings.job_id = "job";
    settings.self = self;
    settings.is_standalone = role == Role::kStandalone;
    settings.reg.voters = 3;
    settings.node_timeout = 1s;
    return settings;
  }

  Instant now_ = Instant(1h);
  VoterKeeper machine_;
};

template <typename A>
std::vector<A> those(const std::vector<Action>& actions) {
  std::vector<A> found;
  for (const Action& action : actions) {
    if (const auto* one = std::get_if<A>(&action)) found.push_back(*one);
  }
  return found;
}

// The records that the actions ask voters to accept.
inline std::vector<reg::Record> proposed(const std::vector<Action>& actions) {
  std::vector<reg::Record> records;
  for (const Send& send : those<Send>(actions)) {
    const auto frame = decode_frame(send.frame);
    const auto* message = std::get_if<reg::Message>(&frame->body);
    const auto* accept = message == nullptr ? nullptr : std::get_if<reg::Accept>(&message->body);
    if (accept != nullptr) records.push_back(accept->proposal.record);
  }
  return records;
}

// The former coordinator has handed over, and its vote elects this process.
inline std::vector<Action> elect(Process* process, const reg::Record& record = record_of_three()) {
  process->feed(Informed{former_coordinator()});
  process->receive(kFormer, reg::Accept{{record, true}});
  process->receive(kFormer, reg::HandOver{2, {record, true}});
  return process->receive(kFormer, reg::Accepted{.newness = {2, 1}, .is_accepted = true});
}

}  // namespace elastic::succession
