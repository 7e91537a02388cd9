// What proves that the process of a node has ended.

#include "core/session/end_proof.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace elastic::core {
namespace {

using Step = EndProof::Step;

constexpr const char* kAddress = "10.0.0.7:4711";

// What happened before, in order, and what follows from the last of it.
struct Case {
  const char* name;
  std::vector<std::function<Step(EndProof*)>> events;
  Step last;
};

Step began(EndProof* proof) { return proof->session_began(kAddress); }
Step began_without_port(EndProof* proof) { return proof->session_began(""); }
Step began_elsewhere(EndProof* proof) { return proof->session_began("10.0.0.8:4711"); }
Step closed(EndProof* proof) { return proof->session_closed(); }
Step answered(EndProof* proof) { return proof->answered(); }
Step refused(EndProof* proof) { return proof->refused(); }
Step failed(EndProof* proof) { return proof->failed(); }

TEST(EndProof, OnlyAnAddressThatAnsweredBeforeProvesTheEnd) {
  const Case cases[] = {
      {"a session begins", {began}, Step::kTest},
      {"it has no port", {began_without_port}, Step::kDrop},
      {"it has no port and is closed", {began_without_port, closed}, Step::kNone},
      {"the test is answered", {began, answered}, Step::kDrop},
      {"closed after that", {began, answered, closed}, Step::kDial},
      {"refused", {began, answered, closed, refused}, Step::kAgain},
      {"refused again", {began, answered, closed, refused, refused}, Step::kEnded},
      {"the second one has no answer", {began, answered, closed, refused, failed}, Step::kDrop},
      {"resumed between two",
       {began, answered, closed, refused, began, closed, refused},
       Step::kAgain},
      {"the guardian still listens", {began, answered, closed, answered}, Step::kNone},
      {"and ends", {began, answered, closed, answered, refused}, Step::kEnded},
      {"the agent accepts", {began, answered, closed, answered, failed}, Step::kDrop},
      {"no answer", {began, answered, closed, failed}, Step::kDrop},
      {"another process has taken the port between two",
       {began, answered, closed, refused, answered, failed},
       Step::kDrop},
      {"a firewall rejects from the start", {began, refused, closed}, Step::kNone},
      {"the port is unreachable from the start", {began, failed, closed}, Step::kNone},
      {"closed during the test", {began, closed}, Step::kNone},
      {"refused then: it never answered", {began, closed, refused}, Step::kDrop},
      {"answered then", {began, closed, answered}, Step::kNone},
      {"answered then, and reset", {began, closed, answered, refused}, Step::kEnded},
      {"refused after the node resumed", {began, answered, closed, began, refused}, Step::kDrop},
      {"resumed: no second test", {began, answered, closed, began}, Step::kDrop},
      {"closed again", {began, answered, closed, began, closed}, Step::kDial},
      {"resumed during the test", {began, closed, began}, Step::kTest},
      {"resumed from another address", {began, answered, closed, began_elsewhere}, Step::kTest},
      {"which has not answered", {began, answered, began_elsewhere, closed}, Step::kNone},
  };
  for (const Case& one : cases) {
    EndProof proof;
    Step last = Step::kNone;
    for (const auto& event : one.events) last = event(&proof);
    EXPECT_EQ(last, one.last) << one.name;
  }
}

}  // namespace
}  // namespace elastic::core
