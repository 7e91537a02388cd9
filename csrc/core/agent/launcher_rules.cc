#include "core/agent/launcher_rules.h"

#include <string>
#include <utility>

namespace elastic {
namespace core {
namespace {

// Nothing for no code.
void add_codes(const std::vector<int>& codes, FailureRule rule, std::vector<FailureRule>* rules) {
  if (codes.empty()) return;
  FailureCondition& on = rule.on.emplace_back(FailureCondition{.kind = FailureKind::kWorker});
  for (const int code : codes) on.codes.emplace_back(code, code);
  rules->push_back(std::move(rule));
}

std::vector<std::string> describe_all(const std::vector<FailureRule>& rules) {
  std::vector<std::string> texts;
  texts.reserve(rules.size());
  for (const FailureRule& rule : rules) texts.push_back(describe(rule));
  return texts;
}

}  // namespace

std::vector<FailureRule> launcher_rules(const AgentOptions& options) {
  std::vector<FailureRule> rules;
  add_codes(options.bad_node_codes,
            {.name = "; that code means a bad node (--bad-node-codes)",
             .origin = "--bad-node-codes",
             .node_leaves = true},
            &rules);
  if (options.hang_action == HangAction::kFail) {
    rules.push_back({.name = "; a hang ends the job (--hang-action)",
                     .origin = "--hang-action=fail",
                     .on = {{.kind = FailureKind::kHang}},
                     .action = FailureAction::kStop});
  }
  rules.push_back({.name = "; a restart would not help",
                   .on = {{.kind = FailureKind::kUnstartable}},
                   .action = FailureAction::kStop});
  add_codes(options.no_restart_codes,
            {.name = "; that code ends the job (--no-restart-codes)",
             .origin = "--no-restart-codes",
             .action = FailureAction::kStop},
            &rules);
  return rules;
}

}  // namespace core

FailureRulesText describe_failure_rules(const AgentOptions& options) {
  core::FailureRules job = core::failure_rules(options.rendezvous.settings);
  if (options.rendezvous.settings.max_nodes == 1) {  // no other node departs
    std::erase_if(job.defaults, [](const core::FailureRule& rule) { return !!rule.enough_left; });
  }
  return {core::describe_all(core::launcher_rules(options)), core::describe_all(job.of_user),
          core::describe_all(job.defaults)};
}

}  // namespace elastic
