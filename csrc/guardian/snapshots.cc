#include "guardian/snapshots.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <iterator>
#include <utility>

#include "core/snapshot/crc32c.h"
#include "guardian/channel.h"
#include "os/process/memory_left.h"

// Theory of operation. A worker's file may hold anything at any time, since the worker writes to
// it. So the guardian reads it by pread, and never maps it: that raises no signal, and its own
// resident memory stays small. A snapshot is verified if its header is the same before and after
// the digest was computed, and says that it is complete; the header has a number that increases
// with each snapshot of the rank. What is not verified is not reported, and no round continues from
// it.
//
// A worker that was killed between its last write and its message has left a complete snapshot, and
// one that was killed while it wrote has left an unfinished one in a file whose earlier snapshot
// was verified. So when the workers have ended every file is looked at again.
//
// Digests are computed in pieces, because the same thread reaps workers. Each piece takes less than
// a millisecond.

namespace elastic::guardian {
namespace {

using snapshot::AgentPacket;
using snapshot::AgentPacketKind;
using worker::kSharedSlot;
using worker::kSlots;
using worker::SnapshotKind;
using worker::SnapshotPacket;

constexpr std::size_t kReadAtOnce = 256 << 10;
constexpr int kReadsAtOnce = 4;
constexpr int kPacketsAtOnce = 64;
constexpr std::size_t kNewSocketsMax = 1024;
constexpr Duration kInterval = std::chrono::seconds(1);
// What must be left of the memory when a snapshot has been made.
constexpr std::uint64_t kReserve = std::uint64_t{64} << 20;

static_assert(kReadAtOnce % snapshot::kAlignment == 0);

bool read_exactly(int file, void* bytes, std::size_t size, std::uint64_t at) {
  return ::pread(file, bytes, size, static_cast<off_t>(at)) == static_cast<ssize_t>(size);
}

void write_word(int file, std::uint64_t offset, std::uint64_t word) {
  (void)!::pwrite(file, &word, sizeof word, static_cast<off_t>(offset));
}

std::optional<snapshot::Header> header_of(int file, std::uint64_t size) {
  char page[sizeof(snapshot::Header)];
  snapshot::Header header;
  const bool is_read =
      read_exactly(file, page, sizeof page, 0) && snapshot::read_header(page, size, &header);
  return is_read ? std::optional(header) : std::nullopt;
}

// The bytes of the file that have memory.
std::uint64_t touched(int file) {
  struct stat found {};
  return ::fstat(file, &found) == 0 ? static_cast<std::uint64_t>(found.st_blocks) * 512 : 0;
}

bool send_packet(int socket, const SnapshotPacket& packet, const std::vector<int>& files = {}) {
  return send_message(socket, &packet, sizeof packet, files, MSG_DONTWAIT) ==
         static_cast<ssize_t>(sizeof packet);
}

// What a file contains, for the agent.
AgentPacket packet_of(const snapshot::Header& header, std::uint32_t digest) {
  return {.kind = AgentPacketKind::kPinned,
          .rank = static_cast<std::int32_t>(header.rank),
          .world_size = static_cast<std::int32_t>(header.world),
          .round = header.round,
          .step = header.step,
          .size = header.size,
          .digest = digest,
          .is_replicated = (header.flags & snapshot::kReplicated) != 0};
}

HeldState held_of(const snapshot::Header& header, std::uint32_t digest) {
  return {.rank = static_cast<std::int32_t>(header.rank),
          .world_size = static_cast<std::int32_t>(header.world),
          .step = header.step,
          .round = header.round,
          .digest = digest,
          .is_replicated = (header.flags & snapshot::kReplicated) != 0};
}

}  // namespace

Snapshots::Rank* Snapshots::find(std::uint32_t rank) {
  const auto found =
      std::find_if(ranks_.begin(), ranks_.end(), [&](const Rank& one) { return one.rank == rank; });
  return found == ranks_.end() ? nullptr : &*found;
}

Snapshots::Slot* Snapshots::find(std::uint32_t rank, std::uint32_t slot) {
  Rank* const found = find(rank);
  return found == nullptr || slot >= kSlots ? nullptr : &found->slots[slot];
}

void Snapshots::connect(os::UniqueFd socket) {
  if (new_sockets_.size() < kNewSocketsMax) new_sockets_.push_back(std::move(socket));
}

void Snapshots::attach(os::UniqueFd socket) {
  agent_ = std::move(socket);
  show_shared();
}

void Snapshots::keep(const snapshot::KeepRequest& request) {
  round_ = request;
  hold_ = -1;
  is_settling_ = false;
  Slot shared = take_shared(request);
  std::erase_if(ranks_, [&](const Rank& one) {
    const auto rank = static_cast<std::int64_t>(one.rank);
    return one.world != static_cast<std::uint32_t>(request.world_size) ||
           rank < request.base_rank || rank >= request.base_rank + std::int64_t{request.ranks};
  });
  job_.reset();
  queue_.clear();
  for (Rank& rank : ranks_) {
    rank.socket.reset();
    for (Slot& slot : rank.slots) {
      // What is older was saved on the way to it.
      const bool is_other = slot.header.step == round_.point.step && !is_point(slot);
      const bool is_kept = slot.is_verified && slot.header.step <= round_.point.step && !is_other;
      if (slot.file.valid() && !is_kept) discard(&slot);
    }
  }
  if (!shared.file.valid()) return_shared();
  shared_ = std::move(shared);
  show_shared();
  has_changed_ = true;
}

// Whether the round continues from this snapshot, or from one of the same save.
bool Snapshots::is_point(const Slot& slot) const {
  const ResumePoint& point = round_.point;
  return slot.is_verified && point.step >= 0 && slot.header.step == point.step &&
         (point.round < 0 || slot.header.round == point.round);
}

// The one that ranks and other nodes are to share. It belongs to no rank from now on, so that none
// overwrites it.
Snapshots::Slot Snapshots::take_shared(const snapshot::KeepRequest& request) {
  const auto is_it = [&](const Slot& slot) {
    return is_point(slot) && slot.header.rank == static_cast<std::uint32_t>(request.shared_rank) &&
           slot.header.world == static_cast<std::uint32_t>(request.shared_world_size);
  };
  if (request.shared_rank < 0) return {};
  if (is_it(shared_)) return std::exchange(shared_, {});
  for (Rank& rank : ranks_) {
    for (Slot& slot : rank.slots) {
      if (!is_it(slot)) continue;
      set_pin(&slot, false);
      return std::exchange(slot, {});
    }
  }
  return {};
}

// A round follows that continues from it again, each rank from its own.
void Snapshots::return_shared() {
  const snapshot::Header& header = shared_.header;
  const bool is_of_round =
      is_point(shared_) && header.world == static_cast<std::uint32_t>(round_.world_size) &&
      header.rank >= static_cast<std::uint32_t>(round_.base_rank) &&
      header.rank < static_cast<std::uint32_t>(round_.base_rank + round_.ranks);
  if (!is_of_round) return;
  Rank* rank = find(header.rank);
  if (rank == nullptr) rank = &ranks_.emplace_back();
  rank->rank = header.rank;
  rank->world = header.world;
  *free_slot(rank) = std::exchange(shared_, {});
}

// Gives it to the agent, for other nodes.
void Snapshots::show_shared() {
  if (!agent_.valid() || !shared_.file.valid()) return;
  AgentPacket packet = packet_of(shared_.header, shared_.digest);
  packet.is_shared = true;
  send_to_agent(packet, {shared_.file.get()});
}

// The workers have restored it, and each rank of the node has a newer one.
void Snapshots::release_shared() {
  if (!shared_.file.valid()) return;
  const auto has_newer = [&](const Rank& rank) {
    return std::any_of(std::begin(rank.slots), std::end(rank.slots), [&](const Slot& slot) {
      return slot.is_verified && slot.header.step > shared_.header.step;
    });
  };
  const auto newer = std::count_if(ranks_.begin(), ranks_.end(), has_newer);
  if (newer < round_.ranks) return;
  shared_ = {};
  has_changed_ = true;
}

void Snapshots::continue_round() {
  round_ = {};
  hold_ = -1;
  shared_ = {};
  job_.reset();
  queue_.clear();
  has_changed_ = has_changed_ || !ranks_.empty();
  ranks_.clear();
}

// The file is no snapshot from now on, and is looked at again only if a worker has written to it.
void Snapshots::discard(Slot* slot) {
  const std::vector<char> zeros(snapshot::kPage);
  (void)!::pwrite(slot->file.get(), zeros.data(), zeros.size(), 0);
  slot->is_verified = false;
}

void Snapshots::add_to(std::vector<pollfd>* polled) const {
  if (agent_.valid()) polled->push_back({agent_.get(), POLLIN, 0});
  for (const os::UniqueFd& one : new_sockets_) polled->push_back({one.get(), POLLIN, 0});
  for (const Rank& one : ranks_) {
    if (one.socket.valid()) polled->push_back({one.socket.get(), POLLIN, 0});
  }
}

void Snapshots::read() {
  for (int n = 0; n < kPacketsAtOnce && read_agent(); ++n) continue;
  std::vector<os::UniqueFd> sockets = std::exchange(new_sockets_, {});
  for (os::UniqueFd& one : sockets) {
    read_new(&one);
    if (one.valid()) new_sockets_.push_back(std::move(one));
  }
  for (std::size_t i = 0; i < ranks_.size(); ++i) {
    for (int n = 0; n < kPacketsAtOnce && read_one(&ranks_[i]); ++n) continue;
  }
}

namespace {

template <typename Packet>
auto receive_packet(int socket, Packet* packet) {
  return receive_message<int>(socket, packet, sizeof *packet, SCM_RIGHTS, MSG_DONTWAIT);
}

os::UniqueFd file_of(const ReceivedMessage<int>& message) {
  return os::UniqueFd(message.ancillary.value_or(-1));
}

bool must_wait(ssize_t got) { return got < 0 && (errno == EAGAIN || errno == EINTR); }

}  // namespace

// Resets the socket unless its hello has not arrived yet.
void Snapshots::read_new(os::UniqueFd* socket) {
  SnapshotPacket packet;
  const auto message = receive_packet(socket->get(), &packet);
  const os::UniqueFd unwanted = file_of(message);
  const ssize_t got = message.bytes;
  if (must_wait(got)) return;
  os::UniqueFd own = std::move(*socket);
  const bool is_hello = got == sizeof packet && packet.kind == SnapshotKind::kHello &&
                        packet.rank < packet.world &&
                        packet.world <= static_cast<std::uint32_t>(INT32_MAX);
  if (!is_hello) return;
  Rank* rank = find(packet.rank);
  if (rank == nullptr && ranks_.size() >= static_cast<std::size_t>(kLocalWorldSizeMax)) return;
  if (rank != nullptr && rank->world != packet.world) *rank = {};
  if (rank == nullptr) rank = &ranks_.emplace_back();
  rank->rank = packet.rank;
  rank->world = packet.world;
  rank->socket = std::move(own);
  answer_hello(rank);
}

void Snapshots::answer_hello(Rank* rank) {
  SnapshotPacket reply{.kind = SnapshotKind::kSlots};
  std::vector<int> files;
  for (std::uint32_t i = 0; i < kSlots; ++i) {
    const Slot& slot = rank->slots[i];
    if (!slot.file.valid()) continue;
    reply.slot |= 1U << i;
    files.push_back(slot.file.get());
    const bool is_newer =
        reply.step < 0 || slot.header.sequence > rank->slots[reply.from].header.sequence;
    if (!is_point(slot) || !is_newer) continue;
    reply.step = slot.header.step;
    reply.from = i;
    reply.digest = slot.digest;
  }
  if (reply.step < 0 && is_point(shared_)) {
    reply.slot |= 1U << kSharedSlot;
    files.push_back(shared_.file.get());
    reply.step = shared_.header.step;
    reply.from = kSharedSlot;
    reply.digest = shared_.digest;
  }
  reply.is_own = round_.point.kind == ResumeKind::kOwn ? 1 : 0;
  if (!send_packet(rank->socket.get(), reply, files)) rank->socket.reset();
}

// False: nothing more to read now.
bool Snapshots::read_one(Rank* rank) {
  if (!rank->socket.valid()) return false;
  SnapshotPacket packet;
  const auto message = receive_packet(rank->socket.get(), &packet);
  os::UniqueFd file = file_of(message);
  const ssize_t got = message.bytes;
  if (must_wait(got)) return false;
  const bool is_shared = packet.kind == SnapshotKind::kDamaged && packet.slot == kSharedSlot;
  if (got != sizeof packet || (packet.slot >= kSlots && !is_shared)) {
    rank->socket.reset();
    return false;
  }
  if (packet.kind == SnapshotKind::kComplete) {
    enqueue(rank->rank, packet.slot);
  } else if (packet.kind == SnapshotKind::kOffer) {
    take_offer(rank, packet, std::move(file));
  } else if (packet.kind == SnapshotKind::kDamaged) {
    Slot& slot = is_shared ? shared_ : rank->slots[packet.slot];
    if (slot.is_verified) {
      discard(&slot);
      note("the snapshot of rank " + std::to_string(rank->rank) + " after step " +
           std::to_string(slot.header.step) + " was changed in memory, and is not used again");
    }
  }
  return true;
}

// ---- The agent, which copies snapshots to other nodes and gets those of its ranks from there.

bool Snapshots::read_agent() {
  if (!agent_.valid()) return false;
  AgentPacket packet;
  const auto message = receive_packet(agent_.get(), &packet);
  os::UniqueFd file = file_of(message);
  if (must_wait(message.bytes)) return false;
  if (message.bytes != sizeof packet) {
    agent_.reset();
    return false;
  }
  if (packet.kind == AgentPacketKind::kPin) {
    pin(packet);
  } else if (packet.kind == AgentPacketKind::kAdopt) {
    packet.kind = AgentPacketKind::kAdopted;
    packet.count = adopt(packet, std::move(file)) ? 1 : 0;
    send_to_agent(packet);
  }
  return true;
}

// The socket has room for the snapshots of all ranks: one that has not is that of no agent.
void Snapshots::send_to_agent(const AgentPacket& packet, const std::vector<int>& files) {
  const bool is_sent = send_message(agent_.get(), &packet, sizeof packet, files) ==
                       static_cast<ssize_t>(sizeof packet);
  if (!is_sent) agent_.reset();
}

// The worker looks at the pin before it overwrites a snapshot, and again after it has said so in
// the header; the guardian looks at the header after it has set the pin. So one of them sees the
// other.
void Snapshots::pin(AgentPacket packet) {
  std::uint32_t count = 0;
  const bool is_new_hold = std::exchange(hold_, packet.hold) != packet.hold;
  for (Rank& rank : ranks_) {
    for (Slot& slot : rank.slots) {
      if (!slot.file.valid()) continue;
      const std::uint64_t hold = hold_ < 0 ? 0 : static_cast<std::uint64_t>(hold_) + 1;
      if (is_new_hold) write_word(slot.file.get(), snapshot::kHoldOffset, hold);
      const auto is = [&](std::int64_t step, std::uint32_t round) {
        return slot.is_verified && slot.header.step == step && slot.header.round == round;
      };
      const bool is_pinned =
          is(packet.step, packet.round) || is(packet.base_step, packet.base_round);
      if (!is_pinned && is_held(slot)) continue;
      if (!set_pin(&slot, is_pinned) || !agent_.valid()) continue;
      send_to_agent(packet_of(slot.header, slot.digest), {slot.file.get()});
      ++count;
    }
  }
  packet.kind = AgentPacketKind::kEnd;
  packet.count = count;
  if (agent_.valid()) send_to_agent(packet);
}

// Whether the worker has pinned it because it is the first one behind the step; verified or not.
bool Snapshots::is_held(const Slot& slot) const {
  std::uint64_t pin = 0;
  const auto header = header_of(slot.file.get(), slot.size);
  return hold_ >= 0 && header && header->step >= hold_ &&
         read_exactly(slot.file.get(), &pin, sizeof pin, snapshot::kPinOffset) &&
         pin == header->sequence;
}

// False: it is not pinned.
bool Snapshots::set_pin(Slot* slot, bool is_pinned) {
  write_word(slot->file.get(), snapshot::kPinOffset, is_pinned ? slot->header.sequence : 0);
  if (!is_pinned) return false;
  const auto header = header_of(slot->file.get(), slot->size);
  return header && *header == slot->header;
}

// In place of what is of no use.
Snapshots::Slot* Snapshots::free_slot(Rank* rank) {
  Slot* slot = &rank->slots[0];
  for (Slot& one : rank->slots) {
    if (!one.is_verified) slot = &one;
  }
  return slot;
}

// Its bytes were verified by the agent, and are again by the process that restores it.
bool Snapshots::adopt(const AgentPacket& packet, os::UniqueFd file) {
  struct stat found {};
  const int seals = file.valid() ? ::fcntl(file.get(), F_GET_SEALS) : -1;
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0 || ::fstat(file.get(), &found) != 0) return false;
  const auto size = static_cast<std::uint64_t>(found.st_size);
  const auto header = header_of(file.get(), size);
  const auto number = static_cast<std::uint32_t>(packet.rank);
  if (!header || header->step != packet.step || header->rank != number || packet.rank < 0 ||
      header->world != static_cast<std::uint32_t>(packet.world_size)) {
    return false;
  }
  // The round continues from this one.
  round_.point.step = header->step;
  round_.point.round = header->round;
  Slot* slot = &shared_;
  if (packet.is_shared) {
    round_.point.kind = ResumeKind::kReplicated;
  } else {
    Rank* rank = find(number);
    if (rank == nullptr && ranks_.size() >= static_cast<std::size_t>(kLocalWorldSizeMax))
      return false;
    if (rank != nullptr && rank->world != header->world) *rank = {};
    if (rank == nullptr) rank = &ranks_.emplace_back();
    rank->rank = number;
    rank->world = header->world;
    slot = free_slot(rank);
  }
  *slot = {};
  slot->file = os::MemoryFile(std::move(file));
  slot->size = size;
  slot->header = *header;
  slot->digest = packet.digest;
  slot->is_verified = true;
  set_pin(slot, !packet.is_shared);
  has_changed_ = true;
  return true;
}

void Snapshots::take_offer(Rank* rank, const SnapshotPacket& packet, os::UniqueFd file) {
  SnapshotPacket reply{.kind = SnapshotKind::kRefused, .slot = packet.slot};
  struct stat found {};
  const int seals = file.valid() ? ::fcntl(file.get(), F_GET_SEALS) : -1;
  const bool is_sealed = seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && (seals & F_SEAL_GROW) != 0;
  if (!is_sealed || ::fstat(file.get(), &found) != 0) {
    std::snprintf(reply.text, sizeof reply.text, "the guardian received no sealed file");
  } else if (const auto size = static_cast<std::uint64_t>(found.st_size);
             size < packet.bytes || size < snapshot::kPage) {
    std::snprintf(reply.text, sizeof reply.text, "the guardian received a file that is too short");
  } else {
    Slot& slot = rank->slots[packet.slot];
    slot = {};
    const bool has_other = std::any_of(std::begin(rank->slots), std::end(rank->slots),
                                       [](const Slot& one) { return one.file.valid(); });
    // A second file follows the first, and files that were accepted may not be touched yet.
    std::uint64_t needed = has_other ? size : 2 * size;
    for (const Rank& one : ranks_) {
      for (const Slot& kept : one.slots) {
        if (kept.file.valid()) needed += kept.size - std::min(kept.size, touched(kept.file.get()));
      }
    }
    const os::MemoryLeft memory = os::memory_left();
    if (needed > memory.bytes - std::min(memory.bytes, kReserve)) {
      std::snprintf(reply.text, sizeof reply.text,
                    "two snapshots of %s need more memory than the %s that are left %s",
                    os::bytes_text(size).c_str(), os::bytes_text(memory.bytes).c_str(),
                    memory.of.c_str());
    } else {
      slot.file = os::MemoryFile(std::move(file));
      slot.size = size;
      reply.kind = SnapshotKind::kAccepted;
    }
    has_changed_ = true;
  }
  if (!send_packet(rank->socket.get(), reply)) rank->socket.reset();
}

void Snapshots::enqueue(std::uint32_t rank, std::uint32_t slot) {
  const Due due{rank, slot};
  if (std::find(queue_.begin(), queue_.end(), due) == queue_.end()) queue_.push_back(due);
}

void Snapshots::begin_job() {
  const Due due = queue_.front();
  queue_.pop_front();
  Slot* const slot = find(due.rank, due.slot);
  if (slot == nullptr || !slot->file.valid()) return;
  const auto header = header_of(slot->file.get(), slot->size);
  const Rank& owner = *find(due.rank);
  const bool is_known = slot->is_verified && header && *header == slot->header;
  if (is_known) return;
  has_changed_ = has_changed_ || slot->is_verified;
  slot->is_verified = false;
  if (!header || header->state != snapshot::State::kComplete || header->sequence == slot->refused ||
      header->rank != owner.rank || header->world != owner.world) {
    return;
  }
  Job job{.rank = due.rank, .slot = due.slot, .header = *header, .index = {}};
  job.index.resize(header->parts);
  if (!read_exactly(slot->file.get(), job.index.data(), header->parts * sizeof(snapshot::Entry),
                    snapshot::kPage) ||
      !snapshot::check_index(job.index.data(), *header)) {
    return;
  }
  job.digest = snapshot::header_digest(*header);
  job.at = snapshot::kPage;
  job_ = std::move(job);
}

void Snapshots::work() {
  if (!job_ && !queue_.empty()) begin_job();
  if (!job_) return;
  const Slot* const slot = find(job_->rank, job_->slot);
  if (slot == nullptr || !slot->file.valid()) return job_.reset();
  buffer_.resize(kReadAtOnce);
  for (int n = 0; n < kReadsAtOnce && job_->at < job_->header.size; ++n) {
    const std::size_t size = static_cast<std::size_t>(
        std::min<std::uint64_t>(kReadAtOnce, job_->header.size - job_->at));
    if (!read_exactly(slot->file.get(), buffer_.data(), size, job_->at)) return end_job(false);
    job_->digest = snapshot::crc32c(job_->digest, buffer_.data(), size);
    job_->has_nan = job_->has_nan || look(&*job_, buffer_.data(), size);
    job_->at += size;
  }
  if (job_->at == job_->header.size) end_job(true);
}

// Whether a part in these bytes has a number that is none.
bool Snapshots::look(Job* job, const char* bytes, std::size_t size) {
  const std::uint64_t begin = job->at;
  const std::uint64_t end = begin + size;
  for (; job->next < job->index.size(); ++job->next) {
    const snapshot::Entry& entry = job->index[job->next];
    const std::uint64_t from = std::max(entry.offset, begin);
    const std::uint64_t to = std::min(entry.offset + entry.bytes, end);
    if (from < to && snapshot::has_nan(entry.kind, bytes + (from - begin),
                                       static_cast<std::size_t>(to - from))) {
      return true;
    }
    if (entry.offset + entry.bytes > end) return false;
  }
  return false;
}

void Snapshots::end_job(bool is_whole) {
  const Job job = *std::exchange(job_, std::nullopt);
  Slot* const slot = find(job.rank, job.slot);
  const auto header = header_of(slot->file.get(), slot->size);
  if (!is_whole || !header || *header != job.header) return;  // it is being overwritten
  if (job.has_nan) {
    slot->refused = job.header.sequence;
    write_word(slot->file.get(), snapshot::kVerdictOffset, job.header.sequence);
    return note("the snapshot of rank " + std::to_string(job.rank) + " after step " +
                std::to_string(job.header.step) +
                " contains NaN and is not used; an earlier one is kept if there is one");
  }
  slot->header = job.header;
  slot->digest = job.digest;
  slot->is_verified = true;
  has_changed_ = true;
  release_shared();
}

bool Snapshots::settle() {
  if (!is_settling_) {
    is_settling_ = true;
    read();
    new_sockets_.clear();
    for (Rank& rank : ranks_) {
      rank.socket.reset();
      for (std::uint32_t slot = 0; slot < kSlots; ++slot) enqueue(rank.rank, slot);
    }
  }
  if (has_work()) return false;
  is_settling_ = false;
  return true;
}

void Snapshots::note(std::string text) {
  notice_ = std::move(text);
  has_changed_ = true;
}

std::optional<Instant> Snapshots::deadline() const {
  return has_changed_ ? std::optional(sent_at_ + kInterval) : std::nullopt;
}

std::optional<snapshot::HeldEvent> Snapshots::take_event(Instant now, bool at_once,
                                                         std::string* notice) {
  if (!has_changed_ || (!at_once && now < sent_at_ + kInterval)) return std::nullopt;
  has_changed_ = false;
  sent_at_ = now;
  snapshot::HeldEvent event;
  for (const Rank& rank : ranks_) {
    std::uint64_t largest = 0;
    int files = 0;
    for (const Slot& slot : rank.slots) {
      if (slot.file.valid()) {
        event.bytes += touched(slot.file.get());
        largest = std::max(largest, slot.size);
        ++files;
      }
      if (slot.is_verified) event.held.push_back(held_of(slot.header, slot.digest));
    }
    event.needed += largest * static_cast<std::uint64_t>(std::max(files, largest > 0 ? 2 : 0));
  }
  if (shared_.is_verified) {
    event.held.push_back(held_of(shared_.header, shared_.digest));
    event.bytes += touched(shared_.file.get());
  }
  if (event.needed > 0) event.left = os::memory_left().bytes;
  std::sort(event.held.begin(), event.held.end(), [](const HeldState& a, const HeldState& b) {
    return std::pair(a.rank, a.step) < std::pair(b.rank, b.step);
  });
  *notice = std::exchange(notice_, {});
  event.notice = *notice;
  return event;
}

}  // namespace elastic::guardian
