#pragma once

// One connection of VoterLinks: the greetings, then frames. Loop thread only.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "core/succession/voter_greeting.h"
#include "host/base/pending_connections.h"
#include "host/succession/voter_links.h"
#include "os/base/fd.h"
#include "os/net/stream.h"

namespace elastic::host {

class VoterLink final : public os::Stream::Handler {
 public:
  // `dialed`: the address; "": the connection was accepted.
  VoterLink(VoterLinks* owner, VoterLinks::ConnectionId number, std::string dialed)
      : id(number), address(std::move(dialed)), owner_(*owner), stream_(&owner->streams_, this) {}
  VoterLink(const VoterLink&) = delete;
  VoterLink& operator=(const VoterLink&) = delete;
  ~VoterLink() = default;

  Status start(os::DetachedStream connection);
  void send(std::string_view frame);
  void close() {
    pending_.reset();
    stream_.close();
  }
  bool is_accepted() const { return address.empty(); }
  // Frames can be sent.
  bool is_open() const { return is_greeted_ && !is_finishing_ && stream_.is_open(); }
  const std::string& remote_host() const { return remote_host_; }

  const VoterLinks::ConnectionId id;
  const std::string address;
  std::uint64_t last_active = 0;  // VoterLinks::activity_
  std::string job;                // once the greetings were exchanged

  std::size_t on_bytes(std::string_view bytes) override;
  void on_secured() override;
  void on_end(os::Stream::End why, int error) override;
  void on_closed() override { owner_.remove(this); }

 private:
  bool take_magic(std::string_view bytes, std::size_t* used);
  void on_frame(const voter::Frame& frame);
  void on_greeting(const voter::Greeting& greeting);
  void write(const voter::Frame& frame);
  void refuse(const Status& why);
  void fail(const Status& why);
  Status end_status(os::Stream::End why, int error) const;

  VoterLinks& owner_;
  std::string remote_host_;
  std::unique_ptr<PendingConnections::Ticket> pending_;  // until the greeting
  bool has_magic_ = false;
  bool is_greeted_ = false;
  bool is_finishing_ = false;
  os::Stream stream_;  // last: its handler uses the other members
};

}  // namespace elastic::host
