// The guardian's end of the socket to a template. The test acts as the template.

#include "guardian/template.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "host/workers/guardian_link.h"

namespace elastic::guardian {
namespace {

using Kind = TemplateMessage::Kind;

void send_message(int socket, Kind kind, const std::string& text) {
  std::string packet(12, '\0');  // kind, id, pid
  packet[0] = static_cast<char>(kind);
  packet += text;
  ASSERT_EQ(::send(socket, packet.data(), packet.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(packet.size()));
}

TEST(TemplateConnection, DeliversTheReasonOfATemplateThatEndedWithRequestsUnread) {
  Template connection;
  os::UniqueFd end = connection.open();
  ASSERT_TRUE(end.valid());
  ASSERT_EQ(connection.send("a request", {STDIN_FILENO}), 0);
  ASSERT_EQ(connection.send("a second request", {STDIN_FILENO}), 0);
  send_message(end.get(), Kind::kStale, "mine.py");
  end.reset();
  const auto message = connection.receive();
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->kind, Kind::kStale);
  EXPECT_EQ(message->text, "mine.py");
  EXPECT_FALSE(connection.receive().has_value());
  EXPECT_FALSE(connection.is_running());
}

TEST(TemplateConnection, DeliversTheDescriptorThatReleasesAWorker) {
  Template connection;
  const os::UniqueFd end = connection.open();
  int pipe[2];
  ASSERT_EQ(::pipe(pipe), 0);
  const os::UniqueFd reader(pipe[0]);
  os::UniqueFd writer(pipe[1]);
  char packet[12] = {static_cast<char>(Kind::kForked)};
  host::UnsentRequests outbox{.bytes = {packet, sizeof packet}, .passed = {{0, pipe[1]}}};
  ASSERT_EQ(outbox.send_some(end.get()), static_cast<ssize_t>(sizeof packet));
  writer.reset();
  auto forked = connection.receive();
  ASSERT_TRUE(forked.has_value());
  EXPECT_EQ(forked->kind, Kind::kForked);
  ASSERT_EQ(::write(forked->release.get(), "r", 1), 1);
  forked.reset();
  char byte = 0;
  EXPECT_EQ(::read(reader.get(), &byte, 1), 1);
  EXPECT_EQ(::read(reader.get(), &byte, 1), 0);  // no other copy is open
}

TEST(TemplateConnection, EndsAtAMessageOfAnUnknownKind) {
  Template connection;
  const os::UniqueFd end = connection.open();
  ASSERT_TRUE(end.valid());
  send_message(end.get(), static_cast<Kind>(99), "");
  EXPECT_FALSE(connection.receive().has_value());
  EXPECT_FALSE(connection.is_running());
}

}  // namespace
}  // namespace elastic::guardian
