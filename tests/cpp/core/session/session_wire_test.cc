// The session protocol: what is encoded comes back, whatever way the stream is cut, and what is no
// message of it is one clear error.

#include "core/session/session_wire.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "core/base/bytes.h"
#include "core/base/random.h"
#include "core/session/session_fields.h"
#include "core/session/session_messages.h"
#include "elastic/observer.h"
#include "support/field_filler.h"
#include "support/hex.h"

namespace elastic::session {
namespace {

using testing::HasSubstr;

template <typename Message>
std::string encode(const Message& message) {
  std::string bytes;
  append(&bytes, message);
  return bytes;
}

template <typename Message>
std::string encode_all(const std::vector<Message>& messages) {
  std::string bytes;
  for (const Message& message : messages) append(&bytes, message);
  return bytes;
}

// Decodes a stream that arrives in pieces of `piece` bytes and encodes again what it finds.
template <typename Message>
std::string recode(std::string_view stream, std::size_t piece) {
  std::string buffer, out;
  while (!stream.empty()) {
    buffer.append(stream.substr(0, piece));
    stream.remove_prefix(std::min(piece, stream.size()));
    while (!buffer.empty()) {
      Message message;
      const DecodeResult decoded = decode(buffer, &message);
      if (decoded.status == DecodeStatus::kViolation) return std::string(decoded.error.message());
      if (decoded.status == DecodeStatus::kNeedMore) break;
      append(&out, message);
      buffer.erase(0, decoded.bytes);
    }
  }
  return out;
}

template <typename Message>
Status error_of(std::string_view bytes) {
  Message message;
  const DecodeResult decoded = decode(bytes, &message);
  EXPECT_EQ(decoded.status, DecodeStatus::kViolation);
  return decoded.error;
}

TEST(SessionWire, EncodedMessagesAreDecodedForEverySplit) {
  const std::string client = encode_all(client_messages());
  const std::string server = encode_all(server_messages());
  for (const std::size_t piece : {std::size_t{1}, std::size_t{3}, std::size_t{64}, client.size()}) {
    EXPECT_EQ(recode<ClientMessage>(client, piece), client) << "pieces of " << piece;
    EXPECT_EQ(recode<ServerMessage>(server, piece), server) << "pieces of " << piece;
  }
}

TEST(SessionWire, NoFieldIsLost) {
  ClientMessage client;
  ASSERT_EQ(decode(encode(client_messages()[2]), &client).status, DecodeStatus::kMessage);
  const auto& join = std::get<rdzv::Join>(client);
  EXPECT_EQ(join.node, node_info());
  EXPECT_EQ(join.settings.min_nodes, 2);
  EXPECT_EQ(join.settings.on_loss, LossPolicy::kFail);
  EXPECT_EQ(join.settings.extra, settings().extra);
  EXPECT_EQ(join.settings.join_timeout, seconds(1));
  EXPECT_EQ(join.settings.store_grace, seconds(7));

  ASSERT_EQ(decode(encode(client_messages()[4]), &client).status, DecodeStatus::kMessage);
  const auto& resume = std::get<rdzv::Resume>(client);
  EXPECT_EQ(resume.phase, rdzv::NodePhase::kStopped);
  EXPECT_EQ(resume.last->record, record());
  EXPECT_EQ(resume.last->group_rank, 2);
  EXPECT_EQ(resume.last->cause->why, stop_reason());
  EXPECT_EQ(*resume.failure, failure());

  ServerMessage server;
  ASSERT_EQ(decode(encode(server_messages()[3]), &server).status, DecodeStatus::kMessage);
  const auto& round = std::get<rdzv::Round>(server);
  EXPECT_EQ(*round.record, record());
  EXPECT_EQ(round.own, (NodeAssignment{1, 8, 8, 8, 32}));

  ASSERT_EQ(decode(encode(server_messages()[10]), &server).status, DecodeStatus::kMessage);
  EXPECT_EQ(*std::get<rdzv::Closed>(server).result, result());
  ASSERT_EQ(decode(encode(server_messages()[12]), &server).status, DecodeStatus::kMessage);
  EXPECT_EQ(std::get<Timings>(server).settings.store_grace, seconds(7));
  ASSERT_EQ(decode(encode(server_messages()[16]), &server).status, DecodeStatus::kMessage);
  EXPECT_EQ(std::get<ServerHello>(server), std::get<ServerHello>(server_messages()[16]));

  const std::vector<ServerMessage> all = server_messages();
  ASSERT_EQ(decode(encode(all[all.size() - 2]), &server).status, DecodeStatus::kMessage);
  EXPECT_EQ(*std::get<rdzv::Round>(server).cause, (RoundCause{stop_reason(), 2, 7}));
  ASSERT_EQ(decode(encode(all.back()), &server).status, DecodeStatus::kMessage);
  EXPECT_EQ(std::get<rdzv::Restart>(server).why, stop_reason());
}

// The conversation of docs/protocol.md.
TEST(SessionWire, BytesAreThoseOfTheProtocolDocument) {
  using test::hex;
  EXPECT_EQ(hex(std::string(kMagic)), "e5656c6173746963");
  EXPECT_EQ(hex(encode(ClientMessage(ClientHello{
                .term = 3, .job_id = "j", .node = {1, 2}, .secret = {4, 5}, .attempt = 6}))),
            "4300000001010300030000000000000000000300000000000000"
            "010000006a"
            "01000000000000000200000000000000"
            "04000000000000000500000000000000"
            "0600000000000000");
  EXPECT_EQ(hex(encode(ServerMessage(
                ServerHello{.incarnation = 0xdeadbeef, .time = Instant(Duration(7))}))),
            "2600000041010300030000000000000000000100000000000000"
            "efbeadde00000000"
            "0700000000000000");
  EXPECT_EQ(hex(encode(ClientMessage(Heartbeat{Instant(Duration(5))}))),
            "0a00000002010500000000000000");
  EXPECT_EQ(hex(encode(ServerMessage(HeartbeatReply{Instant(Duration(5)), Instant(Duration(7))}))),
            "12000000420105000000000000000700000000000000");
}

TEST(SessionWire, ObserversReceiveEveryField) {
  ServerMessage server;
  ASSERT_EQ(decode(encode(ServerMessage(JobFacts{observed_job()})), &server).status,
            DecodeStatus::kMessage);
  const ObservedJob& job = std::get<JobFacts>(server).job;
  EXPECT_EQ(job.id, "job");
  EXPECT_EQ(job.rounds, observed_job().rounds);
  EXPECT_EQ(job.record, record());
  EXPECT_EQ(job.result, result());
  EXPECT_EQ(job.incumbent, observed_job().incumbent);
  EXPECT_EQ(job.began, observed_job().began);
  ASSERT_EQ(decode(encode(ServerMessage(NodePage{true, {observed_node()}, {}})), &server).status,
            DecodeStatus::kMessage);
  const ObservedNode& node = std::get<NodePage>(server).nodes.front();
  EXPECT_EQ(node.report, worker_report());
  EXPECT_EQ(node.name, "node7_4242");
  EXPECT_TRUE(node.is_suspect);
  EXPECT_EQ(node.silence, milliseconds(250));
}

TEST(SessionWire, HeartbeatIsSmall) {
  EXPECT_LE(encode(client_messages()[1]).size(), 20u);
  EXPECT_LE(encode(server_messages()[1]).size(), 24u);
}

TEST(SessionWire, SenderTruncatesLongText) {
  ServerMessage message;
  ASSERT_EQ(
      decode(encode(ServerMessage(rdzv::Waiting{{}, std::string(100'000, 'x')})), &message).status,
      DecodeStatus::kMessage);
  EXPECT_EQ(std::get<rdzv::Waiting>(message).message.size(), 4 * kMessageBytesMax);
}

TEST(SessionWire, MeaninglessTimesAreClampedBeforeOverflow) {
  rdzv::Join join{node_info(), settings()};
  join.node.stop_grace = Duration::max();
  join.settings.node_timeout = Duration::max();
  ClientMessage message;
  ASSERT_EQ(decode(encode(ClientMessage(join)), &message).status, DecodeStatus::kMessage);
  EXPECT_LT(std::get<rdzv::Join>(message).node.stop_grace, Duration::max() / 4);
  EXPECT_LT(std::get<rdzv::Join>(message).settings.node_timeout, Duration::max() / 4);
}

TEST(SessionWire, FrameLengthIsCheckedBeforeTheFrameArrives) {
  for (const std::uint32_t length :
       {0u, 1u, static_cast<unsigned>(kFrameBytesMax) + 1, 0xFFFFFFFFu}) {
    std::string header(sizeof length, '\0');
    std::memcpy(header.data(), &length, sizeof length);
    EXPECT_THAT(std::string(error_of<ClientMessage>(header).message()),
                HasSubstr("a session frame of " + std::to_string(length) + " bytes"));
  }
}

TEST(SessionWire, TruncatedOrExtendedMessageIsMalformed) {
  for (const ClientMessage& message : client_messages()) {
    std::string bytes = encode(message);
    for (const int change : {-1, +1}) {
      const bool has_fields = bytes.size() > core::kFrameHeaderBytes + 2;
      if (change < 0 && !has_fields) continue;
      std::string other = bytes;
      other.resize(bytes.size() + static_cast<std::size_t>(change));
      const auto length = static_cast<std::uint32_t>(other.size() - core::kFrameHeaderBytes);
      std::memcpy(other.data(), &length, sizeof length);
      const bool is_required = bytes[core::kFrameHeaderBytes + 1] == 1;
      ClientMessage read;
      const DecodeResult decoded = decode(other, &read);
      EXPECT_EQ(decoded.status, is_required ? DecodeStatus::kViolation : DecodeStatus::kSkipped);
      EXPECT_EQ(decoded.error.code(), StatusCode::kPeerViolation);
      EXPECT_THAT(std::string(decoded.error.message()), HasSubstr("malformed"));
    }
  }
}

TEST(SessionWire, AMalformedOptionalMessageIsSkippedWithTheReason) {
  std::string bytes = encode(ClientMessage(hang::NodeStacks{.request = 1, .host = "a"}));
  bytes.pop_back();
  const auto length = static_cast<std::uint32_t>(bytes.size() - core::kFrameHeaderBytes);
  std::memcpy(bytes.data(), &length, sizeof length);
  ClientMessage message;
  const DecodeResult decoded = decode(bytes, &message);
  EXPECT_EQ(decoded.status, DecodeStatus::kSkipped);
  EXPECT_EQ(decoded.bytes, bytes.size());
  EXPECT_THAT(std::string(decoded.error.message()), HasSubstr("kind 21 is malformed"));
}

constexpr auto kFill = [](auto& filler, auto& message) { fields(filler, message); };

void make_possible(rdzv::Round& round) {
  auto record = std::make_shared<RoundRecord>(*round.record);
  record->nodes = record->world_size = round.own.role_world_size = round.own.local_world_size = 1;
  round.own.group_rank = round.own.base_rank = round.own.base_role_rank = 0;
  round.record = std::move(record);
}

void make_possible(ClientHello& hello) { hello.version = hello.oldest_version = kVersion; }
void make_possible(ServerHello& hello) { hello.version = hello.oldest_version = kVersion; }

template <typename Message>
void make_possible(Message&) {}

// What a writer may write, its reader reads: each list of each message with one element more than
// its limit, and each text with one byte more. The lists of fields name them all.
template <typename Message>
void expect_all_readable() {
  for (std::size_t kind = 0; kind < std::variant_size_v<Message>; ++kind) {
    std::size_t limits = 1;
    for (std::size_t which = 0; which < limits; ++which) {
      for (const std::size_t more : {std::size_t{0}, std::size_t{1}}) {
        test::OneAboveItsLimit source(which, more);
        auto message = test::filled<Message>(kind, &source, kFill);
        std::visit([](auto& one) { make_possible(one); }, message);
        limits = std::max(limits, which == 0 ? source.num_limits() : limits);
        const std::string bytes = encode(message);
        Message read;
        const DecodeResult decoded = decode(bytes, &read);
        EXPECT_EQ(decoded.status, DecodeStatus::kMessage)
            << "message " << kind << ", list or text " << which << ", " << more
            << " above its limit: " << decoded.error.message();
        EXPECT_LE(bytes.size(), kFrameBytesMax);
        EXPECT_EQ(encode(read), bytes) << "message " << kind << ", list or text " << which;
      }
    }
  }
}

TEST(SessionWire, AReaderAcceptsEveryListAndTextThatAWriterMaySend) {
  expect_all_readable<ClientMessage>();
  expect_all_readable<ServerMessage>();
}

TEST(SessionWire, TheLongestAddressIsNotCut) {
  const std::string address = std::string(253, 'h') + ":65535";
  ClientHello hello{.job_id = "job", .witness = address};
  hello.succession = SuccessionHello{.voter_address = address};
  hello.endpoints = {address};
  ClientMessage message;
  ASSERT_EQ(decode(encode(ClientMessage(hello)), &message).status, DecodeStatus::kMessage);
  EXPECT_EQ(std::get<ClientHello>(message), hello);
}

TEST(SessionWire, AnExitCodeIsThatOfAProcess) {
  for (const int code : {-1, 256}) {
    JobResult failed = result();
    failed.exit_code = code;
    ServerMessage read;
    EXPECT_EQ(
        decode(encode(ServerMessage(rdzv::Closed{{}, std::make_shared<JobResult>(failed)})), &read)
            .status,
        DecodeStatus::kViolation);
  }
}

// The agent allocates and indexes by the numbers of a round.
TEST(SessionWire, ImpossibleRoundIsMalformed) {
  const auto decode_round = [](const NodeAssignment& own) {
    ServerMessage message;
    return decode(encode(ServerMessage(
                      rdzv::Round{{}, std::make_shared<const RoundRecord>(record()), own})),
                  &message)
        .status;
  };
  const NodeAssignment possible{1, 8, 8, 8, 32};
  EXPECT_EQ(decode_round(possible), DecodeStatus::kMessage);
  for (const int size : {-1, 0, kLocalWorldSizeMax + 1, 0x7FFFFFFF}) {
    NodeAssignment own = possible;
    own.local_world_size = size;
    EXPECT_EQ(decode_round(own), DecodeStatus::kViolation) << size;
  }
  for (const auto field : {&NodeAssignment::group_rank, &NodeAssignment::base_rank,
                           &NodeAssignment::base_role_rank, &NodeAssignment::role_world_size}) {
    for (const int value : {-1, 0x7FFFFFFF}) {
      NodeAssignment own = possible;
      own.*field = value;
      EXPECT_EQ(decode_round(own), DecodeStatus::kViolation) << value;
    }
  }
}

// A node would use them at once.
TEST(SessionWire, TimingsThatNoJobHasAreMalformed) {
  const auto read = [](const JobSettings& job) {
    ServerMessage message;
    return decode(encode(ServerMessage(Timings{job})), &message).status;
  };
  EXPECT_EQ(read(settings()), DecodeStatus::kMessage);
  for (Duration JobSettings::*const field :
       {&JobSettings::node_timeout, &JobSettings::store_grace, &JobSettings::restart_backoff}) {
    JobSettings job = settings();
    job.*field = seconds(-1);
    EXPECT_EQ(read(job), DecodeStatus::kSkipped);
  }
}

TEST(SessionWire, ARoundFromWhichCountingCouldWrapIsMalformed) {
  const auto read = [](const ServerMessage& message) {
    ServerMessage decoded;
    return decode(encode(message), &decoded).status;
  };
  const auto restart = [](std::uint64_t round) { return rdzv::Restart{{}, round, {}, "", {}}; };
  EXPECT_EQ(read(restart(core::kRoundMax)), DecodeStatus::kMessage);
  EXPECT_EQ(read(restart(core::kRoundMax + 1)), DecodeStatus::kViolation);
  EXPECT_EQ(read(rdzv::Evicted{{}, ~std::uint64_t{0}, ""}), DecodeStatus::kViolation);
  RoundRecord last = record();
  last.round = core::kRoundMax + 1;
  EXPECT_EQ(read(rdzv::Round{{}, std::make_shared<RoundRecord>(last), {1, 8, 8, 8, 32}}),
            DecodeStatus::kViolation);
}

// The node would repeat it in its hellos, which no coordinator could read.
TEST(SessionWire, ATermOfACoordinatorFromWhichCountingCouldWrapIsMalformed) {
  const auto read = [](const ServerMessage& message) {
    ServerMessage decoded;
    return decode(encode(message), &decoded).status;
  };
  EXPECT_EQ(read(ServerHello{.term = reg::kNumberMax}), DecodeStatus::kMessage);
  EXPECT_EQ(read(ServerHello{.term = reg::kNumberMax + 1}), DecodeStatus::kViolation);
  RoundRecord last = record();
  last.term = reg::kNumberMax + 1;
  EXPECT_EQ(read(rdzv::Round{{}, std::make_shared<RoundRecord>(last), {1, 8, 8, 8, 32}}),
            DecodeStatus::kViolation);
}

TEST(SessionWire, ATermFromWhichCountingCouldWrapIsMalformed) {
  ClientMessage message;
  const auto hello = [](std::uint64_t term) {
    return encode(ClientMessage(ClientHello{.term = term, .job_id = "job"}));
  };
  EXPECT_EQ(decode(hello(reg::kNumberMax), &message).status, DecodeStatus::kMessage);
  EXPECT_EQ(decode(hello(~std::uint64_t{0}), &message).status, DecodeStatus::kViolation);
}

// The bytes of a message with more behind its fields.
template <typename Message>
std::string with_tail(const Message& message, const std::string& tail) {
  std::string bytes;
  core::ByteWriter(&bytes).text(encode(message).substr(core::kFrameHeaderBytes) + tail);
  return bytes;
}

std::string extension(std::uint8_t tag, const std::string& value) {
  std::string bytes;
  core::append_integer(&bytes, tag);
  core::ByteWriter(&bytes).text(value);
  return bytes;
}

// A message of a version that comes after ours.
std::string frame(std::uint8_t kind, std::uint8_t flags) {
  std::string bytes;
  core::ByteWriter(&bytes).text(std::string{static_cast<char>(kind), static_cast<char>(flags)} +
                                "x");
  return bytes;
}

TEST(SessionWire, ARequiredMessageOfTheOtherDirectionIsRefused) {
  for (const ServerMessage& message : server_messages()) {
    const std::string bytes = encode(message);
    const bool is_required = bytes[core::kFrameHeaderBytes + 1] == 1;
    ClientMessage decoded;
    EXPECT_EQ(decode(bytes, &decoded).status,
              is_required ? DecodeStatus::kViolation : DecodeStatus::kSkipped);
  }
}

TEST(SessionWire, AnUnknownOptionalMessageIsSkipped) {
  ClientMessage client;
  const std::string bytes = frame(50, 0) + encode(client_messages()[1]);
  const DecodeResult skipped = decode(bytes, &client, kVersion + 1);
  EXPECT_EQ(skipped.status, DecodeStatus::kSkipped);
  EXPECT_EQ(decode(std::string_view(bytes).substr(skipped.bytes), &client).status,
            DecodeStatus::kMessage);
  EXPECT_EQ(std::get<Heartbeat>(client), std::get<Heartbeat>(client_messages()[1]));
  ServerMessage server;
  EXPECT_EQ(decode(frame(120, 0xFE), &server).status, DecodeStatus::kSkipped);
}

TEST(SessionWire, AnUnknownRequiredMessageIsRefusedWithBothVersions) {
  ClientMessage message;
  const DecodeResult refused = decode(frame(50, 1), &message, 7);
  EXPECT_EQ(refused.status, DecodeStatus::kViolation);
  EXPECT_EQ(refused.error.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.error.message(),
            "a session message of kind 50 is unknown here: the peer uses version 7 of the session "
            "protocol, this process version 3");
}

TEST(SessionWire, AnUnknownOptionalExtensionIsSkippedAndTheMessageRead) {
  for (const ClientMessage& message : client_messages()) {
    ClientMessage decoded;
    const DecodeResult result =
        decode(with_tail(message, extension(19, "new") + extension(18, "")), &decoded);
    ASSERT_EQ(result.status, DecodeStatus::kMessage) << result.error.message();
    EXPECT_EQ(encode(decoded), encode(message));
  }
  ServerMessage server;
  const ServerMessage hello = ServerHello{.host_job = "another job"};
  ASSERT_EQ(decode(with_tail(hello, extension(2, "new")), &server).status, DecodeStatus::kMessage);
  EXPECT_EQ(std::get<ServerHello>(server), std::get<ServerHello>(hello));
}

TEST(SessionWire, AnUnknownRequiredExtensionIsRefusedWithBothVersions) {
  ClientMessage message;
  const DecodeResult refused =
      decode(with_tail(client_messages()[6], extension(200, "new")), &message, kVersion + 1);
  EXPECT_EQ(refused.status, DecodeStatus::kViolation);
  EXPECT_EQ(refused.error.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(refused.error.message(),
            "a session message of kind 7 needs extension 200, which is unknown here: the peer uses "
            "version 4 of the session protocol, this process version 3");
}

TEST(SessionWire, NewerVersionThatSupportsOursIsAccepted) {
  const ClientMessage hello =
      ClientHello{.version = kVersion + 1, .oldest_version = kVersion, .job_id = "job"};
  ClientMessage message;
  EXPECT_EQ(decode(with_tail(hello, extension(100, "new")), &message).status,
            DecodeStatus::kMessage);
  EXPECT_EQ(std::get<ClientHello>(message).job_id, "job");
}

TEST(SessionWire, IncompatibleVersionIsNamed) {
  const Status error = error_of<ServerMessage>(
      encode(ServerMessage(ServerHello{.version = kVersion + 2, .oldest_version = kVersion + 1})));
  EXPECT_EQ(error.code(), StatusCode::kFailedPrecondition);
  EXPECT_EQ(error.message(),
            "the peer uses version 4 to 5 of the session protocol, this process 3");
}

TEST(SessionWire, RejectionWithCodeOkIsMalformed) {
  std::string bytes = encode(server_messages()[8]);
  bytes[core::kFrameHeaderBytes + 2] = 0;  // behind kind and flags
  EXPECT_THAT(std::string(error_of<ServerMessage>(bytes).message()), HasSubstr("malformed"));
}

// Bytes that are changed at random decode to something, wait for more, or are an error.
// Names and texts of peers are shown to people: in logs, reports and on terminals.
TEST(SessionWire, NamesAndTextsThatAreNotPrintableAreRefusedWithTheReason) {
  ClientHello hello;
  hello.job_id = "job\xFF";
  std::string bytes;
  append(&bytes, ClientMessage(hello));
  ClientMessage message;
  const DecodeResult refused = decode(bytes, &message);
  EXPECT_EQ(refused.status, DecodeStatus::kViolation);
  EXPECT_THAT(std::string(refused.error.message()), HasSubstr("is not printable UTF-8"));

  bytes.clear();
  append(&bytes, ClientMessage(rdzv::Leave{{}, "a reason"}));
  for (const char* bad : {"\x1B[2Jxxxx", "\xC3xxxxxxx"}) {
    std::string damaged = bytes;
    damaged.replace(damaged.size() - 8, 8, bad);
    EXPECT_EQ(decode(damaged, &message).status, DecodeStatus::kViolation);
  }
}

TEST(SessionWire, TheSenderMakesItsNamesAndTextsPrintable) {
  rdzv::Join join{node_info(), settings()};
  join.node.name = "node\xFF\n";
  join.node.address = std::string(kNodeTextBytesMax - 1, 'a') + "\xC3\xBC";
  std::string bytes;
  append(&bytes, ClientMessage(join));
  ClientMessage message;
  ASSERT_EQ(decode(bytes, &message).status, DecodeStatus::kMessage);
  EXPECT_EQ(std::get<rdzv::Join>(message).node.name, "node\uFFFD\uFFFD");
  EXPECT_EQ(std::get<rdzv::Join>(message).node.address, std::string(kNodeTextBytesMax - 1, 'a'));
}

TEST(SessionWire, GarbageIsAnError) {
  Rng rng(7);
  const std::string client = encode_all(client_messages());
  const std::string server = encode_all(server_messages());
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = i % 2 == 0 ? client : server;
    for (int change = 0; change < 3; ++change) {
      bytes[rng.next() % bytes.size()] = static_cast<char>(rng.next() % 256);
    }
    recode<ClientMessage>(bytes, bytes.size());
    recode<ServerMessage>(bytes, bytes.size());
  }
}

TEST(SessionWire, AProcessThatOnlyDirectsToTheCoordinatorIsNoSignOfLifeOfIt) {
  const auto sent_by = [](bool is_elsewhere) -> ServerMessage {
    return Incumbent{.incumbent = {.address = "10.0.0.1:29401", .voters = {}},
                     .is_elsewhere = is_elsewhere};
  };
  EXPECT_FALSE(is_from_coordinator(sent_by(true)));
  EXPECT_TRUE(is_from_coordinator(sent_by(false)));
  EXPECT_TRUE(is_from_coordinator(ServerMessage(Leaving{"the job moves"})));
}

TEST(SessionWire, MagicIsNotAStoreRequest) {
  EXPECT_EQ(kMagic.size(), 8u);
  EXPECT_GT(static_cast<unsigned char>(kMagic[0]), 18);  // the last opcode
}

}  // namespace
}  // namespace elastic::session
