#include "core/succession/succession_types.h"

#include <gtest/gtest.h>

namespace elastic::succession {
namespace {

struct Row {
  const char* name;
  SurvivalFacts facts;
  const char* expected;  // a part of the sentence
};

const Row kRows[] = {
    {"one voter by choice",
     {.voters = 0, .wants_voters = false, .host = "node0", .nodes = 3, .min_nodes = 2},
     "the job does not survive the loss of node0, which runs the coordinator: set voters=3"},
    {"two hosts",
     {.voters = 1, .host = "node0", .nodes = 2},
     "the job does not survive the loss of node0, which runs the coordinator: run nodes on three"},
    {"a firewall",
     {.voters = 1, .host = "node0", .unreached = "10.0.0.2:4711", .nodes = 3},
     "the voter port of 10.0.0.2:4711 cannot be reached from there (--voter-port-range)"},
    {"a witness that is away",
     {.voters = 1, .host = "node0", .unreached_witnesses = "10.0.0.9:29500", .nodes = 2},
     "the witness at 10.0.0.9:29500 does not answer"},
    {"a witness, and one host",
     {.voters = 1, .host = "node0", .has_witness = true, .nodes = 1},
     "run a node on a second host beside the witness"},
    {"a voter is lost, and nobody takes its place",
     {.voters = 3, .lost = 1, .has_witness = true, .nodes = 2},
     "the job does not survive the loss of a further host: 1 of the 3"},
    {"one of five voters is lost",
     {.voters = 5, .lost = 1, .nodes = 5, .min_nodes = 2},
     "the job survives the loss of any one host"},
    {"a coordinator of unknown address", {}, "the loss of the coordinator's host, which runs"},
    {"before the first round", {.voters = 3}, "the job survives the loss of any one host"},
    {"a node to spare",
     {.voters = 3, .nodes = 3, .min_nodes = 2},
     "the job survives the loss of any one host"},
    {"a spare",
     {.voters = 3, .nodes = 3, .min_nodes = 3, .spares = 1},
     "the job survives the loss of any one host"},
    {"five voters",
     {.voters = 5, .nodes = 5, .min_nodes = 2},
     "the job survives the loss of any two hosts"},
    {"five voters, one node to spare",
     {.voters = 5, .nodes = 5, .min_nodes = 4},
     "the job survives the loss of any one host"},
    {"a restart is left",
     {.voters = 3, .nodes = 3, .min_nodes = 3, .restarts = {0, 1}},
     "any one host if another node replaces it: fewer than 3 nodes (the minimum) would remain"},
    {"no restart is left",
     {.voters = 3, .nodes = 3, .min_nodes = 3, .restarts = {2, 2}},
     "the job does not survive the loss of a host: fewer than 3 nodes (the minimum) would remain, "
     "and none of 2 restarts is left (--nnodes, --max-restarts)"},
};

TEST(Survival, EachCaseHasItsSentence) {
  for (const Row& row : kRows) {
    const std::string text = describe_survival(row.facts);
    EXPECT_NE(text.find(row.expected), std::string::npos) << row.name << ": " << text;
  }
}

// A part of another sentence would satisfy the table.
TEST(Survival, OnlyASurvivedLossIsPromised) {
  for (const Row& row : kRows) {
    const bool is_promised = describe_survival(row.facts).starts_with("the job survives");
    const bool is_expected =
        std::string(row.expected).find("does not") == std::string::npos && row.facts.voters >= 3;
    EXPECT_EQ(is_promised, is_expected) << row.name;
  }
}

}  // namespace
}  // namespace elastic::succession
