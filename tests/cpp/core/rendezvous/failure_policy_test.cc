// The rules of a failure policy. tests/data/policy.txt has the table.

#include "core/rendezvous/failure_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/rendezvous/rendezvous_harness.h"
#include "core/rendezvous/rendezvous_machine.h"
#include "elastic/agent_options.h"

namespace elastic::core {
namespace {

using test::Job;
using test::nnodes;
using namespace std::chrono_literals;  // NOLINT: every test uses durations

std::vector<std::string> split(const std::string& text, const std::string& mark) {
  std::vector<std::string> parts;
  std::size_t from = 0;
  for (std::size_t at = 0; (at = text.find(mark, from)) != text.npos; from = at + mark.size()) {
    parts.push_back(text.substr(from, at - from));
  }
  parts.push_back(text.substr(from));
  return parts;
}

struct TimedEvent {
  Instant at;
  FailureEvent event;
};

constexpr std::pair<std::string_view, FailureKind> kEventKinds[] = {
    {"worker", FailureKind::kWorker},
    {"hang", FailureKind::kHang},
    {"node-lost", FailureKind::kNodeLost},
    {"check", FailureKind::kCheck},
};
constexpr std::pair<std::string_view, FailureClass> kEventClasses[] = {
    {"user-worker", FailureClass::kUserWorker},
    {"user-input", FailureClass::kUserInput},
    {"platform", FailureClass::kPlatform},
    {"infrastructure", FailureClass::kInfrastructure},
};

template <typename Value, std::size_t kSize>
std::optional<Value> value_of(const std::pair<std::string_view, Value> (&table)[kSize],
                              const std::string& word) {
  for (const auto& [name, value] : table) {
    if (name == word) return value;
  }
  return std::nullopt;
}

// "61 worker 3 a user-worker CUDA error: oom"; nullopt: it cannot be read.
std::optional<TimedEvent> read_event(const std::string& text) {
  std::istringstream in(text);
  int seconds = 0;
  std::string kind_name;
  std::string class_name;
  TimedEvent read;
  in >> seconds >> kind_name >> read.event.exit_code >> read.event.host >> class_name;
  if (in.fail()) return std::nullopt;
  std::getline(in >> std::ws, read.event.error);
  read.at = Instant(std::chrono::seconds(seconds));
  const auto kind = value_of(kEventKinds, kind_name);
  const auto failure_class = value_of(kEventClasses, class_name);
  if (!kind || !failure_class) return std::nullopt;
  read.event.kind = *kind;
  read.event.failure_class = *failure_class;
  return read;
}

std::string describe(const FailureDecision& decision) {
  std::string text = decision.action == FailureAction::kStop      ? "stop"
                     : decision.action == FailureAction::kExclude ? "exclude"
                                                                  : "restart";
  if (decision.action != FailureAction::kStop) text += decision.counts ? " counted" : " free";
  return text + " " + std::to_string(decision.rule + 1);
}

FailureRules with_defaults(std::vector<FailureRule> rules) {
  FailureRules all = failure_rules({});
  all.of_user = std::move(rules);
  return all;
}

std::string decide_all(const std::vector<FailureRule>& of_user, const std::string& events) {
  const FailureRules rules = with_defaults(of_user);
  std::string decisions;
  std::vector<PastFailure> past;
  for (const std::string& one : split(events, "; ")) {
    const std::optional<TimedEvent> timed = read_event(one);
    if (!timed) return "no event: " + one;
    const FailureDecision decision = decide_failure(rules, past, timed->event, timed->at);
    past.push_back({timed->at, timed->event.host, decision.rule});
    if (!decisions.empty()) decisions += "; ";
    decisions += describe(decision);
  }
  return decisions;
}

TEST(FailurePolicy, DecidesAsTheTable) {
  std::ifstream file(ELASTIC_TEST_POLICY);
  std::vector<FailureRule> rules;
  int rows = 0;
  for (std::string line; std::getline(file, line);) {
    if (line.empty() || line.starts_with('#')) continue;
    if (line.starts_with("policy ")) {
      rules.clear();
    } else if (line.starts_with("  ")) {
      const auto rule = parse_failure_rule(line.substr(2), static_cast<int>(rules.size()) + 1);
      ASSERT_TRUE(rule.ok()) << rule.status().message();
      rules.push_back(*rule);
    } else {
      const auto row = split(line, " -> ");
      ASSERT_EQ(row.size(), 2U) << line;
      EXPECT_EQ(decide_all(rules, row[0]), row[1]) << row[0];
      ++rows;
    }
  }
  EXPECT_GE(rows, 200);
}

TEST(FailurePolicy, AnEventOfTheTableThatCannotBeReadIsAnError) {
  for (const char* event : {"0 wroker 1 a user-worker", "0 worker 1 a user-wroker", "0 worker x a",
                            "worker 1 a user-worker", "0 straggler 0 a infrastructure", ""}) {
    EXPECT_EQ(decide_all({}, event), std::string("no event: ") + event);
  }
}

TEST(FailurePolicy, NamesTheRuleThatDecides) {
  const auto rule = parse_failure_rule("line=7 do=restart max=2 within=21600", 3);
  ASSERT_TRUE(rule.ok());
  const Instant now(std::chrono::hours(1));
  std::vector<PastFailure> past;
  EXPECT_EQ(decide_failure(with_defaults({*rule}), past, {}, now).why,
            "rule 3 (line 7) of the failure policy");
  past = {{now, "a", 0}, {now, "b", 0}};
  const FailureDecision last = decide_failure(with_defaults({*rule}), past, {}, now);
  EXPECT_EQ(last.action, FailureAction::kStop);
  EXPECT_EQ(last.why, "rule 3 (line 7) of the failure policy allows 2 restarts within 6 h");
}

TEST(FailurePolicy, AdviceDecidesWhereNoRuleMatches) {
  const auto rule = parse_failure_rule("line=1 on=exit:3 do=restart max=1", 1);
  ASSERT_TRUE(rule.ok());
  FailureEvent event{.exit_code = 3, .host = "a"};
  event.advice = {FailureAction::kStop, std::nullopt, "the policy function site", "no data"};
  FailureDecision decision = decide_failure(with_defaults({*rule}), {}, event, {});
  EXPECT_EQ(describe(decision), "restart counted 1");
  decision = decide_failure(with_defaults({*rule}), {{Instant(), "a", 0}}, event, {});
  EXPECT_EQ(describe(decision), "stop 1") << "the rule is exhausted, and still decides";
  event.exit_code = 4;
  decision = decide_failure(with_defaults({*rule}), {}, event, {});
  EXPECT_EQ(describe(decision), "stop 0");
  EXPECT_EQ(decision.why, "the policy function site (no data) ends the job");
  event.advice = {FailureAction::kExclude, false, "the policy function site", ""};
  decision = decide_failure(with_defaults({}), {}, event, {});
  EXPECT_EQ(describe(decision), "exclude free 0");
  EXPECT_EQ(decision.why, "the policy function site excludes host a");
  event.advice = {FailureAction::kRestart, true, "the policy function site", "slow"};
  EXPECT_EQ(describe(decide_failure(with_defaults({}), {}, event, {})), "restart counted 0");
}

TEST(FailurePolicy, ARuleThatCannotBeReadIsAnError) {
  for (const char* text :
       {"on=exit:", "on=exit:x", "on=", "on=class:x", "on=node", "do=wait", "times=x",
        "for=", "max=-1", "max=", "count=x", "unknown=1", "host=1 unknown=1", "on=hang;"}) {
    const auto rule = parse_failure_rule(text, 1);
    if (std::string(text) == "on=hang;") {
      EXPECT_TRUE(rule.ok());
      continue;
    }
    EXPECT_FALSE(rule.ok()) << text;
  }
}

TEST(FailurePolicy, RulesAreSettingsOfTheJob) {
  JobSettings settings;
  settings.extra = {{"program", "train.py"},
                    {std::string(kPolicySetting) + "1", "line=2 on=exit:3 do=stop"},
                    {std::string(kPolicySetting) + "2", "line=5 do=restart text=a=b c"}};
  const auto rules = failure_rules(settings).of_user;
  ASSERT_EQ(rules.size(), 2U);
  EXPECT_EQ(rules[1].name, "rule 2 (line 5) of the failure policy");
  EXPECT_EQ(rules[1].text, "a=b c");
}

TEST(FailurePolicy, DescribesRules) {
  constexpr std::pair<const char*, const char*> kRows[] = {
      {"line=2 on=exit:3,64-78 do=stop", "exit 3,64-78: stop (line 2)"},
      {"line=6 on=exit:137;class:platform do=restart count=0 max=3 within=3600",
       "signal KILL or class platform: restart, not counted, at most 3 within 1 h (line 6)"},
      {"line=7 on=exit:1,137,143;class:user-input do=restart count=1",
       "exit 1 or signal KILL,TERM or class user-input: restart, counted (line 7)"},
      {"line=13 on=hang host=2 do=stop text=CUDA error: x = 1",
       "hang, error with 'CUDA error: x = 1', 2 in a row on one host: stop (line 13)"},
      {"line=19 do=restart max=5", "any: restart, at most 5 (line 19)"},
      {"line=3 on=worker times=3 do=exclude within=3600",
       "worker, 3 on one host within 1 h: exclude its host (line 3)"},
      {"line=9 on=straggler for=60 do=exclude", "straggler for 1 min: exclude its host (line 9)"},
      {"line=4 on=node-lost;check do=restart", "lost-node or check: restart (line 4)"},
      {"from=--no-restart-codes on=exit:3-4 do=stop", "exit 3-4: stop (--no-restart-codes)"},
  };
  for (const auto& [text, shown] : kRows) {
    const auto rule = parse_failure_rule(text, 1);
    ASSERT_TRUE(rule.ok()) << text;
    EXPECT_EQ(core::describe(*rule), shown);
  }
}

TEST(FailurePolicy, OptionsAreTheRulesWithoutOne) {
  AgentOptions options;
  JobSettings& settings = options.rendezvous.settings;
  settings.min_nodes = 2;
  settings.max_nodes = 3;
  settings.max_restarts = 4;
  options.bad_node_codes = {40, 41};
  options.no_restart_codes = {3, 137};
  options.hang_action = HangAction::kFail;
  const FailureRulesText replaced = describe_failure_rules(options);
  EXPECT_THAT(replaced.of_launcher,
              testing::ElementsAre(
                  "exit 40,41: this node leaves, with that code (--bad-node-codes)",
                  "hang: stop (--hang-action=fail)", "a program that cannot be executed: stop",
                  "exit 3 or signal KILL: stop (--no-restart-codes)"));
  EXPECT_THAT(replaced.of_policy, testing::IsEmpty());
  const char* const kept =
      "lost-node or check or a node that leaves, MIN nodes left: restart, not counted";
  EXPECT_THAT(replaced.defaults,
              testing::ElementsAre(kept, "any: restart, counted (--max-restarts=4)"));
  settings.on_loss = LossPolicy::kFail;
  EXPECT_THAT(describe_failure_rules(options).defaults,
              testing::ElementsAre(kept,
                                   "lost-node or check or a node that leaves, fewer than MIN left: "
                                   "stop (--on-node-loss=fail)",
                                   "any: restart, counted (--max-restarts=4)"));
  settings.max_nodes = settings.min_nodes = 1;
  EXPECT_THAT(describe_failure_rules(options).defaults,
              testing::ElementsAre("any: restart, counted (--max-restarts=4)"));
}

TEST(FailurePolicy, ADefaultRuleMatchesEachEvent) {
  for (const LossPolicy on_loss : {LossPolicy::kReplace, LossPolicy::kFail}) {
    JobSettings settings;
    settings.on_loss = on_loss;
    const FailureRules rules = failure_rules(settings);
    for (const FailureKind kind : {FailureKind::kWorker, FailureKind::kHang, FailureKind::kNodeLost,
                                   FailureKind::kNodeLeft, FailureKind::kCheck}) {
      const bool is_departure = kind != FailureKind::kWorker && kind != FailureKind::kHang;
      const bool ends = is_departure && on_loss == LossPolicy::kFail;
      const FailureDecision few =
          decide_failure(rules, {}, {.kind = kind, .enough_left = false}, {});
      EXPECT_EQ(describe(few), ends ? "stop 0" : "restart counted 0");
      const FailureDecision enough = decide_failure(rules, {}, {.kind = kind}, {});
      EXPECT_EQ(describe(enough), is_departure ? "restart free 0" : "restart counted 0");
    }
  }
}

// The rule of the user decides, whatever the option says.
TEST(FailurePolicy, ARuleReplacesLostNodesThatTheOptionDoesNot) {
  FailureRules rules = failure_rules([] {
    JobSettings settings;
    settings.on_loss = LossPolicy::kFail;
    return settings;
  }());
  const auto rule = parse_failure_rule("line=1 on=node-lost do=restart max=1", 1);
  ASSERT_TRUE(rule.ok());
  rules.of_user.push_back(*rule);
  const FailureEvent event{.kind = FailureKind::kNodeLost, .enough_left = false};
  EXPECT_EQ(describe(decide_failure(rules, {}, event, {})), "restart counted 1");
  EXPECT_EQ(describe(decide_failure(rules, {{Instant(), "", 0}}, event, {})), "stop 1");
}

// ---- In a job.

JobSettings with_rules(JobSettings settings, const std::vector<std::string>& rules) {
  for (const std::string& rule : rules) {
    settings.extra.emplace_back(
        std::string(kPolicySetting) + std::to_string(settings.extra.size() + 1), rule);
  }
  return settings;
}

void rejoin_all(Job* job) {
  for (const char* name : {"a", "b"}) job->rejoin(name);
}

TEST(FailurePolicyOfAJob, StopsItAlthoughRestartsAreLeft) {
  JobSettings settings = with_rules(nnodes(2, 2), {"line=1 on=exit:3 do=stop"});
  settings.max_restarts = 5;
  Job job(settings);
  job.join_all({"a", "b"});
  job.fail("a", 1);
  rejoin_all(&job);
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.machine().record().restarts, 1);
  job.fail("b", 3);
  rejoin_all(&job);
  ASSERT_TRUE(job.is_closed());
  EXPECT_EQ(job.result().exit_code, 3);
  EXPECT_TRUE(job.result().message.ends_with("rule 1 (line 1) of the failure policy ends the job"))
      << job.result().message;
}

TEST(FailurePolicyOfAJob, IsTheSameWhereverItsRulesStandInTheFile) {
  const auto settings = [](const char* rule) { return with_rules(nnodes(2, 2), {rule}); };
  const JobSettings job = settings("line=1 on=exit:5-6 do=stop");
  EXPECT_TRUE(compare_settings(job, settings("line=7 on=exit:5-6 do=stop")).ok());
  EXPECT_EQ(compare_settings(job, settings("line=1 on=exit:5 do=stop")).message(),
            "this node has failure policy, rule 1=exit 5: stop, the job has failure policy, "
            "rule 1=exit 5-6: stop");
}

TEST(FailurePolicyOfAJob, RestartsItWithoutACharge) {
  Job job(with_rules(nnodes(2, 2), {"line=1 on=exit:137 do=restart count=0 max=2"}));
  job.join_all({"a", "b"});
  for (int i = 0; i < 2; ++i) {
    job.fail("a", 137);
    rejoin_all(&job);
    ASSERT_TRUE(job.is_running());
    EXPECT_EQ(job.machine().record().restarts, 0);
    EXPECT_EQ(job.share("b").cause->rule, "rule 1 (line 1) of the failure policy");
  }
  job.fail("a", 137);
  rejoin_all(&job);
  ASSERT_TRUE(job.is_closed());
  EXPECT_TRUE(job.result().message.ends_with("allows 2 restarts")) << job.result().message;
}

TEST(FailurePolicyOfAJob, EveryOtherFailureIsDecidedAsWithoutRules) {
  Job job(with_rules(nnodes(2, 2), {"line=1 on=exit:137 do=restart count=0"}));
  job.join_all({"a", "b"});
  job.fail("a", 1);
  rejoin_all(&job);
  ASSERT_TRUE(job.is_closed());
  EXPECT_TRUE(job.result().message.ends_with("no restart is allowed")) << job.result().message;
}

void fail_with(Job* job, const std::string& name, int exit_code, FailureAdvice advice) {
  advice.from = "the policy function f";
  job->fail(name, exit_code, 0s, "", std::nullopt, std::move(advice));
}

TEST(FailurePolicyOfAJob, AdviceThatComesBeforeTheRoundIsOverDecides) {
  Job job(nnodes(2, 2));
  job.join_all({"a", "b"});
  job.fail("a", 4);
  EXPECT_FALSE(job.is_closed()) << "a loss may explain it";
  fail_with(&job, "a", 4, {.counts = false});
  rejoin_all(&job);
  ASSERT_TRUE(job.is_running()) << "no restart is allowed, and this one is not charged";
  EXPECT_EQ(job.share("b").cause->rule, "the policy function f");
  fail_with(&job, "b", 4, {FailureAction::kStop});
  rejoin_all(&job);
  ASSERT_TRUE(job.is_closed());
  EXPECT_TRUE(job.result().message.ends_with("; the policy function f ends the job"))
      << job.result().message;
}

TEST(FailurePolicyOfAJob, OnlyAdviceAboutTheFirstFailureCounts) {
  JobSettings settings = nnodes(2, 2);
  settings.max_restarts = 1;
  Job job(settings);
  job.join_all({"a", "b"});
  job.fail("a", 4);
  job.pass_and_tick(1ms);
  fail_with(&job, "b", 5, {FailureAction::kStop});
  rejoin_all(&job);
  EXPECT_TRUE(job.is_running());
  EXPECT_EQ(job.machine().record().restarts, 1);
}

TEST(FailurePolicyOfAJob, DecidesAboutALoss) {
  for (const bool stops : {false, true}) {
    JobSettings settings = nnodes(1, 2);
    settings.max_restarts = 5;
    Job job(with_rules(settings, {stops ? "line=1 on=node-lost do=stop"
                                        : "line=1 on=node-lost do=restart count=1"}));
    job.join_all({"a", "b"});
    job.cut("b");
    job.pass_and_tick(1s);
    if (stops) {
      ASSERT_TRUE(job.is_closed());
      EXPECT_EQ(job.result().cause, JobCause::kNodeLost);
      EXPECT_EQ(job.result().node, "b");
      continue;
    }
    job.rejoin("a");
    ASSERT_TRUE(job.is_running());
    EXPECT_EQ(job.machine().record().restarts, 1);  // it would be free
  }
}

TEST(FailurePolicyOfAJob, DecidesAboutANodeThatACheckHasFoundBad) {
  for (const int code : {kExitBadHost, 0}) {
    JobSettings settings = nnodes(1, 2);
    settings.max_restarts = 5;
    Job job(with_rules(settings, {"line=1 on=check do=stop"}));
    job.join_all({"a", "b"});
    job.step(rdzv::Leave{job.id("b"), "check gpu of host b: GPU 3 is lost", code});
    if (code == 0) {
      EXPECT_FALSE(job.is_closed()) << "it has left for another reason";
      continue;
    }
    ASSERT_TRUE(job.is_closed());
    EXPECT_TRUE(
        job.result().message.ends_with("rule 1 (line 1) of the failure policy ends the job"))
        << job.result().message;
  }
}

TEST(FailurePolicyOfAJob, TheOtherNodesOfABadHostAreNotBad) {
  for (const LossPolicy policy : {LossPolicy::kFail, LossPolicy::kReplace}) {
    JobSettings settings = nnodes(2, 2);
    settings.on_loss = policy;
    Job job(settings);
    job.join_all({"a", "b"});
    job.step(rdzv::Leave{job.id("b"), "check gpu of host b: GPU 3 is lost", kExitBadHost});
    if (policy == LossPolicy::kReplace) job.pass_and_tick(settings.join_timeout);
    ASSERT_TRUE(job.is_closed());
    EXPECT_EQ(exit_code_of(job.result()), kExitNodeLost);
  }
}

TEST(FailurePolicyOfAJob, ItsMemoryIsPartOfTheState) {
  const JobSettings settings =
      with_rules(nnodes(2, 2), {"line=1 do=restart count=0 max=1 within=100"});
  Job job(settings);
  job.join_all({"a", "b"});
  job.fail("a", 1);
  rejoin_all(&job);
  const std::string state = job.machine().encode();
  RendezvousMachine later(settings, Instant(9999s));
  ASSERT_TRUE(later.load(state, Instant(9999s)).ok());
  EXPECT_EQ(later.encode(), state);
}

}  // namespace
}  // namespace elastic::core
