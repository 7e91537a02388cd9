#include "core/workers/worker_env.h"

#include <algorithm>
#include <string_view>
#include <unordered_map>

#include "core/base/check.h"

namespace elastic::core {
namespace {

std::string variable(std::string_view name, std::string_view value) {
  std::string entry;
  entry.reserve(name.size() + value.size() + 1);
  return entry.append(name).append("=").append(value);
}

std::string variable(std::string_view name, long long value) {
  return variable(name, std::to_string(value));
}

}  // namespace

std::vector<std::string> rank_variables(const JobConstants& job, const RoundInfo& round,
                                        int local_rank, const std::string& error_file) {
  const auto index = static_cast<std::size_t>(local_rank);
  ELASTIC_CHECK(index < round.workers.size());
  const WorkerAssignment& worker = round.workers[index];
  std::vector<std::string> variables = {
      variable("LOCAL_RANK", worker.local_rank),
      variable("RANK", worker.rank),
      variable("GROUP_RANK", round.group_rank),
      variable("ROLE_RANK", worker.role_rank),
      variable("ROLE_NAME", job.role),
      variable("LOCAL_WORLD_SIZE", static_cast<long long>(round.workers.size())),
      variable("WORLD_SIZE", worker.world_size),
      variable("GROUP_WORLD_SIZE", round.group_world_size),
      variable("ROLE_WORLD_SIZE", worker.role_world_size),
      variable("MASTER_ADDR", round.master_addr),
      variable("MASTER_PORT", round.master_port),
      variable("TORCHELASTIC_RESTART_COUNT", round.restart_count),
      variable("TORCHELASTIC_MAX_RESTARTS", job.max_restarts),
      variable("TORCHELASTIC_RUN_ID", job.run_id),
      // torch compares with exactly "True"; every rank is then a client of the agent's store.
      variable("TORCHELASTIC_USE_AGENT_STORE", job.share_store ? "True" : "False"),
      variable("TORCHELASTIC_ERROR_FILE", error_file),
      variable("ELASTIC_ROUND", static_cast<long long>(shown_round(round.round))),
  };
  // Always set: a launcher that runs inside a job must not pass on the variables of that one.
  variables.push_back(
      variable("ELASTIC_ON_MEMBERSHIP_CHANGE", job.changes_in_place ? "inplace" : "restart"));
  variables.push_back(variable("ELASTIC_AWAITS_ROUND", "0"));
  variables.push_back(variable("ELASTIC_MEMBERSHIP_CHANGE", ""));
  variables.push_back(
      variable("ELASTIC_RESTART_CAUSE", round.cause ? round.cause->why.describe() : ""));
  variables.push_back(
      variable("ELASTIC_SAME_FAILURES", round.cause ? round.cause->same_failures : 0));
  return variables;
}

std::vector<std::string> unranked_variables(const JobConstants& job, int local_rank,
                                            std::size_t workers, const std::string& error_file) {
  return {
      variable("LOCAL_RANK", local_rank),
      variable("LOCAL_WORLD_SIZE", static_cast<long long>(workers)),
      variable("ROLE_NAME", job.role),
      variable("TORCHELASTIC_MAX_RESTARTS", job.max_restarts),
      variable("TORCHELASTIC_RUN_ID", job.run_id),
      variable("TORCHELASTIC_ERROR_FILE", error_file),
      variable("ELASTIC_ON_MEMBERSHIP_CHANGE", "inplace"),
      variable("ELASTIC_AWAITS_ROUND", "1"),
  };
}

std::vector<std::string> without_ranks(const std::vector<std::string>& environment) {
  constexpr std::string_view kRanks[] = {"RANK",
                                         "GROUP_RANK",
                                         "ROLE_RANK",
                                         "MASTER_ADDR",
                                         "WORLD_SIZE",
                                         "GROUP_WORLD_SIZE",
                                         "ROLE_WORLD_SIZE",
                                         "MASTER_PORT",
                                         "TORCHELASTIC_RESTART_COUNT",
                                         "TORCHELASTIC_USE_AGENT_STORE",
                                         "ELASTIC_ROUND",
                                         "ELASTIC_RESTART_CAUSE",
                                         "ELASTIC_SAME_FAILURES"};
  std::vector<std::string> kept;
  for (const std::string& entry : environment) {
    const std::string_view name = std::string_view(entry).substr(0, entry.find('='));
    if (std::find(std::begin(kRanks), std::end(kRanks), name) == std::end(kRanks)) {
      kept.push_back(entry);
    }
  }
  return kept;
}

std::vector<std::string> merge_environment(
    std::initializer_list<const std::vector<std::string>*> lists) {
  std::vector<std::string> merged;
  std::unordered_map<std::string_view, std::size_t> places;  // views into the arguments
  for (const auto* list : lists) {
    for (const std::string& entry : *list) {
      const std::size_t equals = entry.find('=');
      if (equals == std::string::npos) continue;
      const auto [place, is_new] =
          places.try_emplace(std::string_view(entry).substr(0, equals), merged.size());
      if (is_new) {
        merged.push_back(entry);
      } else {
        merged[place->second] = entry;
      }
    }
  }
  return merged;
}

}  // namespace elastic::core
