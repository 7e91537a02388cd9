// What other processes, perhaps of another version, read: the bytes of samples are those in
// tests/data/formats.txt as long as the version of their format is the same.
//
// A structure is in several formats: a field that is added to JobSettings changes the messages of
// sessions, the record of a job and the state file. Each format that has changed is named.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "core/base/siphash.h"
#include "core/register/register_codec.h"
#include "core/rendezvous/rendezvous_harness.h"
#include "core/session/coordinator_state.h"
#include "core/session/session_messages.h"
#include "core/session/session_wire.h"
#include "core/succession/job_record.h"
#include "core/succession/voter_wire.h"

namespace elastic {
namespace {

using namespace std::chrono_literals;

struct Sample {
  std::string format;
  std::uint64_t version = 0;
  std::string bytes;
};
using Samples = std::vector<Sample>;

template <typename Message>
void add_session(const std::vector<Message>& messages, Samples* out) {
  for (const Message& message : messages) {
    std::string bytes;
    session::append(&bytes, message);
    out->push_back({"session", session::kVersion, std::move(bytes)});
  }
}

JobSettings settings() {
  JobSettings settings;
  settings.min_nodes = 2;
  settings.max_nodes = 4;
  settings.max_restarts = 3;
  settings.on_loss = LossPolicy::kFail;
  settings.extra = {{"voters", "3"}};
  settings.join_timeout = 11s;
  return settings;
}

const reg::LineageId kLineage = {7, 8};
const succession::Incumbent kIncumbent = {
    kLineage, 3, {4, 5}, "10.0.0.1:29401", {{{4, 5}, "10.0.0.1:29402"}}};

void add_voters(Samples* out) {
  const reg::Voter one = {{1, 2}, "10.0.0.1:9"};
  const reg::KnownRecord known = {{kLineage, {3, 12}, one, {one}, {one}, {2, 9, true, "bytes"}},
                                  true};
  const std::vector<reg::Body> bodies = {reg::Ask{4, 5, known},
                                         reg::AskReply{4, true, 6, known},
                                         reg::Prepare{5, known, {1, 2}},
                                         reg::Promise{5, true, 5, std::nullopt},
                                         reg::Accept{known},
                                         reg::Accepted{{3, 12}, true, false, 3},
                                         reg::InForce{{3, 12}},
                                         reg::HandOver{4, known},
                                         reg::Fetch{{3, 12}},
                                         reg::Fetched{known}};
  for (const reg::Body& body : bodies) {
    const reg::Message message = {kLineage, {1, 2}, {3, 4}, body};
    out->push_back({"register", reg::kFormatVersion, reg::encode_message(message)});
  }
  const std::vector<succession::VoterBody> frames = {
      succession::Probe{kLineage}, succession::ProbeReply{kLineage, 1},
      succession::Announce{kIncumbent}, succession::Query{5}};
  for (const succession::VoterBody& body : frames) {
    out->push_back({"voter", succession::kVoterWireVersion,
                    succession::encode_frame({"job", {1, 2}, {3, 4}, body})});
  }
}

// Waiting, stopping, departed, a failure, armed timers.
std::string rendezvous_state() {
  test::Job job(test::with(test::nnodes(2, 3), [](JobSettings& s) {
    s.max_restarts = 2;
    s.extra = {{"version", "1"}};
  }));
  job.node("b").role = "reader";
  job.node("b").topology = "rack7";
  job.join_all({"a", "b", "c"});
  job.join("spare");
  job.fail("a", 4);
  job.gone("b");
  job.leave("c");
  return job.machine().encode();
}

void add_jobs(Samples* out) {
  out->push_back({"state", core::kStateVersion, rendezvous_state()});
  const succession::JobRecord record{.job_id = "job",
                                     .settings = settings(),
                                     .state = "state",
                                     .nodes = {{{1, 2}, "10.0.0.1:29402"}}};
  const std::string bytes = succession::encode_record(record);
  const std::uint64_t version = succession::record_format() >> 16;
  out->push_back({"record", version, bytes});
  succession::KeptRecord kept;
  kept.lineage = kLineage;
  kept.term = 3;
  kept.holder = kept.node = {4, 5};
  kept.address = "10.0.0.1:29401";
  kept.content = {.generation = 1, .round = 2, .is_result = false, .bytes = "record"};
  // Its head has the version of the state, too.
  const std::string head_and_fields = succession::encode_kept(kept);
  out->push_back({"kept-record", version, head_and_fields.substr(sizeof(std::uint32_t) * 3)});
  const core::StoredJob stored{.id = "job",
                               .term = 3,
                               .settings = settings(),
                               .state = "state",
                               .secrets = {{{1, 2}, {3, 4}}}};
  const std::string file = core::encode_jobs({stored}, {{"ended", "hosts"}});
  out->push_back({"state-file", static_cast<unsigned char>(file.at(4)), file});
}

// By format and number: its version and digest.
using Table = std::map<std::pair<std::string, int>, std::pair<std::uint64_t, std::string>>;

Table written() {
  Samples samples;
  add_session(session::client_messages(), &samples);
  add_session(session::server_messages(), &samples);
  add_voters(&samples);
  add_jobs(&samples);
  Table table;
  std::map<std::string, int> counts;
  for (const Sample& one : samples) {
    std::ostringstream digest;
    digest << std::hex << SipHash(0)(one.bytes);
    table[{one.format, counts[one.format]++}] = {one.version, digest.str()};
  }
  return table;
}

Table stored() {
  Table table;
  std::ifstream file(ELASTIC_TEST_FORMATS);
  std::string line;
  while (std::getline(file, line)) {
    if (line.empty() || line.front() == '#') continue;
    std::istringstream words(line);
    std::string format, digest;
    int number = 0;
    std::uint64_t version = 0;
    words >> format >> number >> version >> digest;
    table[{format, number}] = {version, digest};
  }
  return table;
}

void store(const Table& table) {
  std::ofstream file(ELASTIC_TEST_FORMATS);
  file << "# Digests of what this version writes for other processes: format, sample, version,\n"
          "# digest. tests/cpp/core/session/formats_test.cc has the samples, and writes this "
          "file.\n";
  for (const auto& [key, value] : table) {
    file << key.first << ' ' << key.second << ' ' << value.first << ' ' << value.second << '\n';
  }
}

TEST(Formats, HaveTheirBytesAsLongAsTheyHaveTheirVersion) {
  const Table now = written();
  if (std::getenv("ELASTIC_FORMATS_REWRITE") != nullptr) return store(now);
  const Table before = stored();
  ASSERT_GT(before.size(), 60U);
  std::string changed;
  for (const auto& [key, value] : before) {
    const auto found = now.find(key);
    if (found == now.end() || found->second == value) continue;
    if (found->second.first == value.first) {
      changed += " " + key.first + " " + std::to_string(key.second);
    }
  }
  EXPECT_EQ(changed, "")
      << "The bytes of these samples have changed, and the version of their format has not. A new "
         "message or extension of a session needs no new version; any other change does.";
  EXPECT_TRUE(now == before) << "If that is right: ELASTIC_FORMATS_REWRITE=1 core_tests "
                                "--gtest_filter='Formats.*'";
}

}  // namespace
}  // namespace elastic
