#include "core/succession/succession_types.h"

#include <algorithm>

#include "core/base/text.h"

namespace elastic::succession {
namespace {

constexpr int kLossesMax = 2;

std::string hosts_text(int losses) { return losses == 1 ? "any one host" : "any two hosts"; }

std::string describe_single(const SurvivalFacts& facts) {
  const std::string where = facts.host.empty() ? "the coordinator's host" : facts.host;
  const std::string remedy =
      !facts.wants_voters        ? "set voters=3 in --rdzv-conf on every node"
      : !facts.unreached.empty() ? "the voter port of " + facts.unreached +
                                       " cannot be reached from there (--voter-port-range)"
      : !facts.unreached_witnesses.empty()
          ? "the witness at " + facts.unreached_witnesses + " does not answer"
      : facts.has_witness
          ? "run a node on a second host beside the witness"
          : "run nodes on three hosts, or add a witness (--rdzv-conf=witness=HOST:PORT)";
  return "the job does not survive the loss of " + where +
         ", which runs the coordinator: " + remedy;
}

}  // namespace

CoordinatorInfo describe(const Incumbent& incumbent) {
  CoordinatorInfo info{.address = incumbent.address,
                       .lineage = to_string(NodeId{incumbent.lineage.high, incumbent.lineage.low}),
                       .term = incumbent.term,
                       .voters = {}};
  if (!incumbent.is_replicated()) return info;
  for (const reg::Voter& voter : incumbent.voters) info.voters.push_back(voter.address);
  return info;
}

std::string list_of(const std::vector<reg::Voter>& voters) {
  std::string all;
  for (const reg::Voter& voter : voters) all += (all.empty() ? "" : ", ") + voter.address;
  return all;
}

std::string host_of(const std::string& address) {
  const std::string host = address.substr(0, address.rfind(':'));
  const bool is_bracketed = host.starts_with('[') && host.ends_with(']');
  return is_bracketed ? host.substr(1, host.size() - 2) : host;
}

std::string describe_survival(const SurvivalFacts& facts) {
  if (facts.voters < kVotersNeeded) return describe_single(facts);
  const auto spare_voters = static_cast<int>((facts.voters - 1) / 2);
  const int losses = std::min(spare_voters - static_cast<int>(facts.lost), kLossesMax);
  if (losses <= 0) {
    return "the job does not survive the loss of a further host: " + std::to_string(facts.lost) +
           " of the " + std::to_string(facts.voters) +
           " that keep its record cannot be reached, and no other host can take their place";
  }
  const std::string survives = "the job survives the loss of ";
  if (facts.nodes == 0) return survives + hosts_text(losses);
  const int dispensable = std::clamp(facts.nodes + facts.spares - facts.min_nodes, 0, losses);
  if (dispensable > 0) return survives + hosts_text(dispensable);
  const std::string too_few =
      "fewer than " + core::count_text(facts.min_nodes, "node") + " (the minimum) would remain";
  if (!facts.restarts.is_spent()) {
    return survives + hosts_text(losses) + " if another node replaces it: " + too_few;
  }
  return "the job does not survive the loss of a host: " + too_few + ", and " +
         facts.restarts.describe_spent() + " (--nnodes, --max-restarts)";
}

}  // namespace elastic::succession
