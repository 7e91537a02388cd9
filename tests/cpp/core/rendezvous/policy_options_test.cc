// Options of a launcher that a rule of a failure policy can replace: every list of failures of
// tests/data/policy.txt has the same consequences in a job with the option and in one with the
// rule.

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "core/rendezvous/failure_policy.h"
#include "core/rendezvous/rendezvous_harness.h"

namespace elastic::core {
namespace {

using test::Job;
using test::nnodes;
using namespace std::chrono_literals;  // NOLINT: every test uses durations

struct Failure {
  std::string kind;
  int exit_code = 0;
  std::string host;
};

std::vector<std::vector<Failure>> read_failures() {
  std::ifstream file(ELASTIC_TEST_POLICY);
  std::vector<std::vector<Failure>> rows;
  for (std::string line; std::getline(file, line);) {
    const std::size_t end = line.find(" -> ");
    if (end == std::string::npos || line.starts_with('#')) continue;
    std::vector<Failure> row;
    std::istringstream events(line.substr(0, end));
    for (std::string text; std::getline(events, text, ';');) {
      std::istringstream in(text);
      int seconds = 0;
      Failure one;
      in >> seconds >> one.kind >> one.exit_code >> one.host;
      if (one.host == "a" || one.host == "b") row.push_back(one);
    }
    // No option is about checks.
    const auto is_check = [](const Failure& one) { return one.kind == "check"; };
    if (std::none_of(row.begin(), row.end(), is_check)) rows.push_back(row);
  }
  return rows;
}

// One line for each failure: what the job is then.
std::string play(const JobSettings& settings, const std::vector<Failure>& failures) {
  Job job(settings);
  std::map<std::string, std::string> node_of = {{"a", "a_1"}, {"b", "b_1"}};
  job.join_all({"a_1", "b_1"});
  std::string lines;
  int number = 1;
  for (const Failure& failure : failures) {
    const std::string node = node_of[failure.host];
    if (failure.kind == "node-lost") {
      job.cut(node);
      job.end(node);
      node_of[failure.host] = failure.host + "_" + std::to_string(++number);
    } else {
      job.fail(node, failure.exit_code);
    }
    for (const auto& [host, name] : node_of) {
      if (job.is_closed()) break;
      if (host == failure.host && failure.kind == "node-lost") {
        job.join(name);
      } else {
        job.rejoin(name);
      }
    }
    if (job.is_closed()) {
      const JobResult& result = job.result();
      lines += "ends with code " + std::to_string(result.exit_code) + " because of " + result.node +
               ", cause " + std::to_string(static_cast<int>(result.cause)) + "\n";
      break;
    }
    EXPECT_TRUE(job.is_running()) << job.describe();
    lines += "round " + std::to_string(job.round()) + "\n";
  }
  return lines;
}

void expect_equal(const std::function<void(JobSettings&)>& option,
                  const std::function<void(JobSettings&)>& rule) {
  const JobSettings with_option = test::with(nnodes(2, 2), option);
  const JobSettings with_rule = test::with(nnodes(2, 2), rule);
  int rows = 0;
  int ends = 0;
  for (const std::vector<Failure>& row : read_failures()) {
    const std::string lines = play(with_option, row);
    EXPECT_EQ(play(with_rule, row), lines);
    ++rows;
    if (lines.find("ends") != std::string::npos) ++ends;
  }
  EXPECT_GE(rows, 200);
  EXPECT_GE(ends, 20);  // the option matters in the table
}

void set_rule(JobSettings& settings, const std::string& rule) {
  settings.extra.emplace_back(
      std::string(kPolicySetting) + std::to_string(settings.extra.size() + 1), rule);
}

TEST(OptionsAsRules, MaxRestartsEqualsARuleWithALimit) {
  for (const int limit : {1, 2, 3}) {
    expect_equal([&](JobSettings& settings) { settings.max_restarts = limit; },
                 [&](JobSettings& settings) {
                   set_rule(settings, "do=restart count=0 max=" + std::to_string(limit));
                 });
  }
}

TEST(OptionsAsRules, NoRestartEqualsARuleThatStops) {
  expect_equal([](JobSettings& settings) { settings.on_loss = LossPolicy::kReplace; },
               [](JobSettings& settings) {
                 settings.max_restarts = 100;
                 set_rule(settings, "do=stop");
               });
}

TEST(OptionsAsRules, OnNodeLossFailEqualsARuleAboutLostNodes) {
  expect_equal(
      [](JobSettings& settings) {
        settings.max_restarts = 100;
        settings.on_loss = LossPolicy::kFail;
      },
      [](JobSettings& settings) {
        settings.max_restarts = 100;
        set_rule(settings, "on=node-lost do=stop");
      });
}

}  // namespace
}  // namespace elastic::core
