// One test for each file in tests/data/scenarios. ELASTIC_SCENARIO_REWRITE=1 writes the traces of
// this run into the files.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/scenario/scenario.h"

namespace elastic::scenario {
namespace {

namespace fs = std::filesystem;

std::vector<fs::path> find_stories() {
  std::vector<fs::path> found;
  for (const auto& entry : fs::recursive_directory_iterator(ELASTIC_TEST_SCENARIOS)) {
    if (entry.path().extension() == ".txt") found.push_back(entry.path());
  }
  std::sort(found.begin(), found.end());
  return found;
}

std::string subject_of(const fs::path& story) { return story.parent_path().filename().string(); }

std::unique_ptr<Adapter> make_adapter(const std::string& subject) {
  if (subject == "agent") return make_agent_adapter();
  if (subject == "drain") return make_drain_adapter();
  if (subject == "hang") return make_hang_adapter();
  if (subject == "record") return make_record_adapter();
  if (subject == "rendezvous") return make_rendezvous_adapter();
  if (subject == "session") return make_session_adapter();
  throw Fault("no machine for the stories of " + subject);
}

class Scenario : public ::testing::TestWithParam<fs::path> {};

TEST_P(Scenario, LeavesItsTrace) {
  const std::string path = GetParam().string();
  std::stringstream expected;
  expected << std::ifstream(path).rdbuf();
  std::string actual;
  try {
    actual = run_scenario(expected.str(), path, make_adapter(subject_of(GetParam())).get());
  } catch (const Fault& fault) {
    FAIL() << fault.what();
  }
  if (std::getenv("ELASTIC_SCENARIO_REWRITE") != nullptr) {
    std::ofstream(path) << actual;
    return;
  }
  EXPECT_TRUE(actual == expected.str())
      << compare_scenarios(expected.str(), actual, path)
      << "If that is right, and the documents say so: ELASTIC_SCENARIO_REWRITE=1 core_tests "
         "--gtest_filter='*Scenario*"
      << GetParam().stem().string() << "'";
}

INSTANTIATE_TEST_SUITE_P(Stories, Scenario, ::testing::ValuesIn(find_stories()),
                         [](const auto& test) {
                           return subject_of(test.param) + "_" + test.param.stem().string();
                         });

// Prints its arguments.
class Echo : public Adapter {
 public:
  void run(Command* command, Trace* trace) override {
    if (command->name() == "send") {
      for (const std::string& to : command->words()) trace->line(to, command->text("text", ""));
    } else if (command->name() == "wait") {
      trace->line(std::to_string(to_seconds(command->duration())));
    } else {
      throw Fault("unknown command '" + command->name() + "'");
    }
  }
};

std::string fault_of(const std::string& text) {
  Echo echo;
  try {
    return "none: " + run_scenario(text, "file", &echo);
  } catch (const Fault& fault) {
    return fault.what();
  }
}

TEST(ScenarioRunner, ReplacesTheTracesAndKeepsTheRest) {
  Echo echo;
  EXPECT_EQ(
      run_scenario(
          "# why\nquiet send c\nsend a b b text=\"one two\"\n# and\nwait 250ms\n----\nold\nold\n\n"
          "send\n----\n",
          "file", &echo),
      "# why\nquiet send c\nsend a b b text=\"one two\"\n# and\nwait 250ms\n----\na, b: one "
      "two\nb: one two\n0.250000\n\n"
      "send\n----\n");
}

TEST(ScenarioRunner, AFaultHasFileAndLine) {
  EXPECT_EQ(fault_of("# a comment\nsend a\n----\n\nsnd a\n"), "file:5: unknown command 'snd'");
  EXPECT_EQ(fault_of("send a txt=b"), "file:1: send: unknown argument 'txt'");
  EXPECT_EQ(fault_of("wait 1s 2s"), "file:1: wait: unknown word '2s'");
  EXPECT_EQ(fault_of("wait 1"), "file:1: '1' is no duration");
  EXPECT_EQ(fault_of("wait"), "file:1: wait: a word is missing");
  EXPECT_EQ(fault_of("send a text=b text=c"), "file:1: 'text' is given twice");
  EXPECT_EQ(fault_of("send \"a"), "file:1: a double quote is not closed");
  EXPECT_EQ(fault_of("send a"), "file: the last commands have no ----");
}

TEST(ScenarioRunner, ShowsWhatDiffers) {
  EXPECT_EQ(compare_scenarios("x\n----\nsame\n\ny\nz\n----\nsame\nold\n",
                              "x\n----\nsame\n\ny\nz\n----\nsame\nnew\n", "file"),
            "file:5:\n  y\n  z\n- old\n+ new\n");
}

}  // namespace
}  // namespace elastic::scenario
