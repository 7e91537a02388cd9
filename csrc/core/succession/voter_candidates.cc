// The nodes and witnesses that could vote, as the coordinator in this process finds them.

#include <algorithm>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/timings.h"
#include "core/succession/succession_types.h"
#include "core/succession/voter_keeper.h"

namespace elastic::succession {
namespace {

// Twice the most voters.
constexpr std::size_t kProbedMax = 2 * reg::kVotersMax;
// Each one is dialed as long as this coordinator runs, and any node may name one.
constexpr std::size_t kWitnessesMax = 4;

// The nodes that have a voter port, but for one, by id.
class Present {
 public:
  Present(const std::vector<KnownNode>& nodes, const NodeId& without) {
    nodes_.reserve(nodes.size());
    for (const KnownNode& one : nodes) {
      if (one.node != without && !one.voter_address.empty()) nodes_.push_back(&one);
    }
    const auto is_before = [](const KnownNode* a, const KnownNode* b) { return a->node < b->node; };
    if (!std::is_sorted(nodes_.begin(), nodes_.end(), is_before)) {
      std::sort(nodes_.begin(), nodes_.end(), is_before);
    }
  }
  // Null: it is not there.
  const KnownNode* find(const NodeId& node) const {
    const auto found = std::lower_bound(
        nodes_.begin(), nodes_.end(), node,
        [](const KnownNode* one, const NodeId& wanted) { return one->node < wanted; });
    return found == nodes_.end() || (*found)->node != node ? nullptr : *found;
  }

 private:
  std::vector<const KnownNode*> nodes_;
};

}  // namespace

std::string VoterKeeper::unreached_voters() const {
  std::string all;
  for (const reg::VoterCandidate& one : candidates()) {
    const bool is_witness = one.kind == reg::VoterCandidate::Kind::kWitness;
    if (one.is_reachable || one.is_leaving || is_witness) continue;
    all += (all.empty() ? "" : ", ") + one.voter.address;
  }
  return all;
}

std::string VoterKeeper::unreached_witnesses() const {
  std::string all;
  for (const auto& [address, witness] : witnesses_) {
    if (!witness.is_reachable) all += (all.empty() ? "" : ", ") + address;
  }
  return all;
}

std::size_t VoterKeeper::num_lost_voters() const {
  if (!register_.known()) return 0;
  const auto& voters = register_.known()->record.voters;
  const auto all = candidates();
  return static_cast<std::size_t>(
      std::count_if(voters.begin(), voters.end(), [&](const reg::Voter& voter) {
        return voter.node != settings_.self.node && !reg::has_reached(all, voter.node);
      }));
}

void VoterKeeper::receive(const VoterFrame& frame, const ProbeReply& message) {
  if (message.lineage != own_lineage()) return;
  const auto found = peers_.probed.find(frame.from);
  if (found == peers_.probed.end() || found->second.is_done) return;
  if (message.record_format != record_format()) {
    if (foreign_.insert(frame.from).second) {
      emit(
          Log{"the node at " + found->second.address +
              " runs another version of elastic, which cannot read the job's record: it does not " +
              "vote"});
    }
    return;
  }
  found->second.is_done = true;
  peers_.silent.erase(frame.from);
  resumed_.insert(frame.from);
  update_candidates();
}

void VoterKeeper::on(const Nodes& event) {
  if (!own_.is_started) return;  // on its way when the coordinator was stopped
  if (event.nodes.empty() && !register_.known()) was_turned_on_ = false;  // the gate has ended
  peers_.nodes = event.nodes;
  for (const KnownNode& one : peers_.nodes) {
    if (one.is_connected) peers_.announced.erase(one.node);
  }
  choose_probed();
  probe_nodes();
  update_candidates();
}

// Only as many nodes are probed as there may be voters, plus some in reserve for a loss: on
// different hosts, spread over the topology hints, members before spares. A node that does not
// answer is replaced by the next one.
void VoterKeeper::choose_probed() {
  const Present present(peers_.nodes, settings_.self.node);
  std::erase_if(peers_.silent, [&](const NodeId& node) { return present.find(node) == nullptr; });
  std::erase_if(foreign_, [&](const NodeId& node) { return present.find(node) == nullptr; });
  std::erase_if(peers_.probed, [&](const auto& entry) {
    const KnownNode* const found = present.find(entry.first);
    return found == nullptr || found->voter_address != entry.second.address;
  });
  std::set<NodeId> chosen;
  std::set<std::string> hosts, topologies;
  const auto add = [&](const KnownNode& one) {
    chosen.insert(one.node);
    hosts.insert(one.host);
    topologies.insert(one.topology);
    peers_.probed.try_emplace(one.node, repeated(one.voter_address));
  };
  if (const auto& known = register_.known()) {
    for (const reg::Voter& voter : known->record.voters) {
      if (const KnownNode* const found = present.find(voter.node)) add(*found);
    }
  }
  for (const auto& [node, probe] : peers_.probed) {
    if (!peers_.silent.contains(node)) add(*present.find(node));
  }
  const auto fill = [&](reg::VoterCandidate::Kind kind, bool is_new_topology, bool may_be_silent) {
    for (const KnownNode& one : peers_.nodes) {
      if (hosts.size() >= kProbedMax) return;
      const bool fits = one.kind == kind && !one.has_left && present.find(one.node) != nullptr &&
                        !hosts.contains(one.host) &&
                        peers_.silent.contains(one.node) == may_be_silent;
      if (fits && (!is_new_topology || !topologies.contains(one.topology))) add(one);
    }
  };
  for (const bool may_be_silent : {false, true}) {
    for (const auto kind :
         {reg::VoterCandidate::Kind::kMember, reg::VoterCandidate::Kind::kSpare}) {
      fill(kind, true, may_be_silent);
      fill(kind, false, may_be_silent);
    }
  }
  std::erase_if(peers_.probed, [&](const auto& entry) { return !chosen.contains(entry.first); });
  peers_.candidates.clear();
  for (const KnownNode& one : peers_.nodes) {
    if (one.node == settings_.self.node || peers_.probed.contains(one.node))
      peers_.candidates.push_back(one);
  }
}

void VoterKeeper::probe_nodes() {
  if (!own_.is_started) return;
  repeat(peers_.probed, Probe{*own_lineage()});
  bool has_changed = false;
  for (const auto& [node, one] : peers_.probed) {
    const bool is_silent = !one.is_done && one.wait >= settings_.repeat_interval_max;
    if (is_silent) has_changed |= peers_.silent.insert(node).second;
  }
  if (!has_changed) return;
  choose_probed();
  repeat(peers_.probed, Probe{*own_lineage()});
}

std::vector<reg::VoterCandidate> VoterKeeper::candidates() const {
  std::vector<reg::VoterCandidate> all;
  for (const KnownNode& one : peers_.candidates) {
    const bool is_self = one.node == settings_.self.node;
    const auto probe = peers_.probed.find(one.node);
    const bool has_answered = probe != peers_.probed.end() && probe->second.is_done;
    if (!is_self && !resumed_.contains(one.node) && now_ < peers_.resume_until) continue;
    const std::string& address = is_self ? settings_.self.address : one.voter_address;
    if (address.empty()) continue;
    all.push_back({.voter = {one.node, address},
                   .host = one.host,
                   .topology = one.topology,
                   .kind = one.kind,
                   // After an election a voter that answers has not resumed its session yet.
                   .is_reachable = is_self || (has_answered && (one.is_connected || one.has_left ||
                                                                now_ < peers_.resume_until)),
                   .is_leaving = one.has_left});
  }
  for (const auto& [address, witness] : witnesses_) {
    if (witness.node == NodeId{} && now_ < peers_.resume_until) continue;
    all.push_back({.voter = {witness.node, address},
                   .host = host_of(address),
                   .topology = {},
                   .kind = reg::VoterCandidate::Kind::kWitness,
                   .is_reachable = witness.is_reachable});
  }
  if (!register_.known() || now_ >= peers_.resume_until) return all;
  for (const reg::Voter& voter : register_.known()->record.voters) {
    if (resumed_.contains(voter.node) || voter.node == former_incumbent_) continue;
    const bool is_listed = std::any_of(
        all.begin(), all.end(), [&](const auto& one) { return one.voter.node == voter.node; });
    if (is_listed) continue;
    all.push_back({.voter = voter,
                   .host = host_of(voter.address),
                   .topology = {},
                   .kind = reg::VoterCandidate::Kind::kMember,
                   .is_reachable = true});
  }
  if (is_former_there_) add_former_incumbent(&all);
  return all;
}

// It has handed the job over, and ends soon. It stays a voter until another node can take its
// place: otherwise there would be fewer voters, and the loss of the node that runs the coordinator
// now could end the job.
void VoterKeeper::add_former_incumbent(std::vector<reg::VoterCandidate>* all) const {
  const std::vector<reg::Voter>& current = register_.known()->record.voters;
  if (register_.choose(*all, current).size() >= current.size()) return;
  for (const reg::Voter& voter : current) {
    if (voter.node != former_incumbent_) continue;
    all->push_back({.voter = voter,
                    .host = host_of(voter.address),
                    .topology = {},
                    .kind = reg::VoterCandidate::Kind::kMember,
                    .is_reachable = true});
  }
}

void VoterKeeper::update_candidates() {
  if (!own_.is_started) return;
  if (register_.known()) {
    feed(reg::CandidatesChanged{candidates()});
  } else {
    begin_record_as_needed();
  }
}

void VoterKeeper::begin_record_as_needed() {
  if (was_turned_on_) return;
  if (register_.choose(candidates(), {}).size() < kVotersNeeded) return;
  was_turned_on_ = true;
  emit(BeginRecord{});
}

std::optional<reg::Voter> VoterKeeper::choose_successor() const {
  if (!register_.known()) return std::nullopt;
  // A voter, in the order of the record; another node becomes a voter first: a member before a
  // spare, and rather on another host, which this one may be about to leave.
  const auto all = candidates();
  const auto& voters = register_.known()->record.voters;
  std::string own_host = host_of(own_.address);  // its node may have left the job
  for (const reg::VoterCandidate& one : all) {
    if (one.voter.node == settings_.self.node) own_host = one.host;
  }
  const auto cost_of = [&](const reg::VoterCandidate& one) {
    const auto is_it = [&](const reg::Voter& voter) { return voter.node == one.voter.node; };
    return std::tuple(std::find_if(voters.begin(), voters.end(), is_it) - voters.begin(),
                      one.host == own_host, one.kind);
  };
  const reg::VoterCandidate* best = nullptr;
  for (const reg::VoterCandidate& one : all) {
    const bool is_witness = one.kind == reg::VoterCandidate::Kind::kWitness;
    if (!one.may_be_chosen() || is_witness || one.voter.node == settings_.self.node) continue;
    if (!register_.is_reachable(one.voter.node)) continue;
    if (best == nullptr || cost_of(one) < cost_of(*best)) best = &one;
  }
  return best == nullptr ? std::nullopt : std::optional(best->voter);
}

// ---- Witnesses.

void VoterKeeper::on(const Witnesses& event) {
  for (const std::string& address : event.addresses) {
    if (witnesses_.contains(address)) continue;
    if (witnesses_.size() >= kWitnessesMax) {
      // A witness that has never answered may be a mistake, or may have moved to this address.
      const auto silent = std::find_if(witnesses_.begin(), witnesses_.end(),
                                       [](const auto& one) { return one.second.node == NodeId{}; });
      if (silent == witnesses_.end()) continue;
      witnesses_.erase(silent);
    }
    witnesses_[address] = {.node = {}, .next = now_, .wait = settings_.repeat_interval};
  }
  probe_witnesses();
}

// A witness that answers no probe for node_timeout counts as unreachable, though its kernel may
// keep the connection. Counting probes instead of time allows for a stall of this process.
void VoterKeeper::probe_witnesses() {
  if (!own_.is_started) return;
  bool has_changed = false;
  for (auto& [address, witness] : witnesses_) {
    if (now_ < witness.next) continue;
    if (witness.is_reachable && ++witness.unanswered > core::kWitnessProbesPerTimeout) {
      witness.is_reachable = false;
      witness.wait = settings_.repeat_interval;
      has_changed = true;
    }
    witness.wait = witness.is_reachable ? core::witness_probe_interval(limits_.node_timeout)
                                        : std::min(2 * witness.wait, settings_.repeat_interval_max);
    witness.next = add_saturating(now_, witness.wait);
    send(NodeId{}, address, Probe{*own_lineage()});
  }
  if (has_changed) update_candidates();
}

void VoterKeeper::receive_from_witness(const std::string& address, const NodeId& node) {
  WitnessPeer& witness = witnesses_.at(address);
  witness.unanswered = 0;
  const bool is_new = !std::exchange(witness.is_reachable, true) || witness.node != node;
  witness.node = node;
  if (!is_new) return;
  witness.next = add_saturating(now_, core::witness_probe_interval(limits_.node_timeout));
  resumed_.insert(node);
  update_candidates();
}

}  // namespace elastic::succession
