#include "host/snapshot/copies.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <utility>

#include "core/base/join_address.h"
#include "core/snapshot/crc32c.h"
#include "os/loop/event_loop.h"
#include "os/process/memory_left.h"

// Theory of operation. Connections and frames are those of the voters, at a port of its own; here
// are their payloads.
//
// The guardian holds the snapshots of this node's ranks, and the workers overwrite them. The ones
// to be copied are pinned: the guardian marks them and passes their descriptors, so they stay as
// they are until a later order. Those of other nodes are kept in this process, as files of memory
// that are never mapped: they end with it, as the guardian's do.
//
// One snapshot is sent to the buddy at a time, a piece of it whenever the rate allows it and the
// other side has acknowledged enough. What arrives is written to a new file, and takes the place of
// no other before its digest was compared. A transfer belongs to its connection and ends with it;
// then it begins again from the start, after a pause.

namespace elastic::host {
namespace {

using snapshot::AgentPacket;
using snapshot::AgentPacketKind;
using snapshot::CopyKind;
using snapshot::CopyMessage;
using snapshot::SavedStep;

constexpr Duration kRetryPause = std::chrono::seconds(2);
constexpr Duration kFetchLimit = std::chrono::seconds(10);       // until its size is known
constexpr std::uint64_t kFetchRateMin = std::uint64_t{8} << 20;  // bytes a second, behind that
constexpr std::uint64_t kReserve = std::uint64_t{256} << 20;     // stays free on the host

VoterLinkLimits limits() {
  VoterLinkLimits limits;
  limits.unsent_bytes_max = std::size_t{16} << 20;
  limits.buffered_bytes_max = std::size_t{64} << 20;
  return limits;
}

SavedStep saved(const HeldState& state) { return {state.step, state.round}; }

std::string text_of(const HeldState& state) {
  return "rank " + std::to_string(state.rank) + " after step " + std::to_string(state.step);
}

}  // namespace

SnapshotCopies::SnapshotCopies(os::EventLoop* loop, Options options, Sink sink)
    : loop_(loop),
      options_(std::move(options)),
      sink_(std::move(sink)),
      links_(loop, options_.job_id, options_.tokens, limits(),
             {.on_frame = [this](ConnectionId from, const std::string& address,
                                 std::string_view frame) { on_frame(from, address, frame); },
              .on_lost = [this](const std::string& address,
                                const Status& why) { on_lost(address, why); },
              .log = [this](const std::string& message) { sink_.log(message); },
              .on_ended = [this](ConnectionId connection) { on_ended(connection); }}),
      pace_(loop,
            [this] {
              if (put_) pump(&*put_, 0, put_->address, true);
            }),
      retry_(loop, [this] { request_pins(); }),
      fetch_limit_(loop, [this] {
        end_fetch({StatusCode::kDeadlineExceeded, "it did not arrive in time"});
      }) {}

SnapshotCopies::~SnapshotCopies() = default;

Status SnapshotCopies::open_port() {
  if (std::exchange(has_port_, true)) return {};
  Status opened = links_.listen(options_.bind_host, options_.ports);
  if (opened.ok()) address_ = core::join_address(options_.address, links_.port());
  return opened;
}

// ---- The round.

void SnapshotCopies::begin_round(std::uint64_t round, int group_rank,
                                 const snapshot::KeepRequest& kept) {
  round_ = round;
  group_rank_ = group_rank;
  kept_ = kept;
  held_.clear();
  copied_.clear();
  to_put_.clear();
  order_.reset();
  put_.reset();
  pace_.disarm();
  retry_.disarm();
  received_.clear();
  reported_ = {};
  const bool is_replicated = kept.point.kind == ResumeKind::kReplicated;
  keep_files([&](const File& one) {
    const bool is_point = is_replicated && one.is_replicated && (!one.is_own || one.is_shared) &&
                          one.state.step == kept.point.step && one.state.round == kept.point.round;
    return is_point ||
           (one.state.world_size == kept.world_size && one.state.step <= kept.point.step);
  });
  if (is_replicated) attach();  // the guardian passes what it shares
  serve_waiting();
}

void SnapshotCopies::on_held(const std::vector<HeldState>& held) {
  held_ = held;
  if (round_ == 0 || held_.empty()) return;
  keep_files([&](const File& one) {  // what the guardian shares no longer, and its copies
    const auto is_it = [&](const HeldState& state) { return saved(state) == saved(one.state); };
    const auto is_read = [&](const auto& served) { return served.second.file == &one; };
    return (!one.is_shared && one.state.world_size == kept_.world_size) ||
           std::any_of(held_.begin(), held_.end(), is_it) ||
           std::any_of(served_.begin(), served_.end(), is_read);
  });
  if (Status opened = open_port(); !opened.ok()) {
    sink_.log("the snapshots of this node are not copied to another one: " +
              std::string(opened.message()));
  }
  note_changed();
  report();
}

void SnapshotCopies::report() {
  if (address_.empty() || round_ == 0) return;
  snapshot::CopyReport report{.round = round_,
                              .group_rank = group_rank_,
                              .address = address_,
                              .host = options_.host,
                              .domain = options_.domain,
                              .own = {},
                              .copied = {},
                              .target = {},
                              .buddies = options_.buddies};
  std::map<SavedStep, std::set<std::int32_t>> steps;
  for (const HeldState& one : held_) {
    const bool is_of_round = one.world_size == kept_.world_size && one.rank >= kept_.base_rank &&
                             one.rank < kept_.base_rank + kept_.ranks;
    if (is_of_round) steps[saved(one)].insert(one.rank);
  }
  for (const auto& [step, ranks] : steps) {
    if (static_cast<int>(ranks.size()) == kept_.ranks) report.own.push_back(step);
  }
  report.copied = copied_;
  if (order_) report.target = order_->step;
  if (report == reported_) return;
  reported_ = report;
  sink_.report(report);
}

void SnapshotCopies::on_order(const snapshot::CopyOrder& order) {
  if (order.round != round_ || order == order_) return;
  is_copied_ = order_ && order_->buddy == order.buddy && order_->more == order.more &&
               std::find(copied_.begin(), copied_.end(), order.step) != copied_.end();
  order_ = order;
  put_.reset();
  pace_.disarm();
  to_put_.clear();
  std::erase_if(copied_,
                [&](const SavedStep& one) { return one != order.step && one != order.base; });
  // A newer one has come from a node that has received a later order already.
  keep_files([&](const File& one) {
    return saved(one.state) >= order.step || saved(one.state) == order.base;
  });
  request_pins();
  report();
}

template <typename Keep>
void SnapshotCopies::keep_files(Keep keep) {
  const auto is_kept = [&](const File* file) { return file != nullptr && keep(*file); };
  std::erase_if(served_, [&](const auto& one) { return !is_kept(one.second.file); });
  if (put_ && !is_kept(put_->file)) put_.reset();
  std::erase_if(files_, [&](const auto& one) { return !keep(*one); });
  note_changed();
}

const SnapshotCopies::File* SnapshotCopies::find(std::int32_t rank, std::int32_t world_size,
                                                 std::int64_t step, std::uint32_t round) const {
  const auto found = std::find_if(files_.begin(), files_.end(), [&](const auto& one) {
    return one->state.rank == rank && one->state.world_size == world_size &&
           one->state.step == step && one->state.round == round;
  });
  return found == files_.end() ? nullptr : found->get();
}

void SnapshotCopies::note_changed() {
  snapshot::CopiesEvent event{.held = {}, .address = address_};
  for (const auto& one : files_) {
    event.held.push_back(one->state);
    event.held.back().is_copy = true;
    event.held.back().is_replicated = one->is_replicated;
  }
  if (event == shown_) return;
  shown_ = event;
  sink_.changed(event);
}

// ---- The guardian.

bool SnapshotCopies::attach() {
  if (guardian_.valid()) return true;
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return false;
  os::UniqueFd own(ends[0]);
  os::UniqueFd other(ends[1]);
  auto watch = loop_->watch(own.get(), EPOLLIN, this);
  if (!watch.ok()) return false;
  watch_ = *std::move(watch);
  guardian_ = std::move(own);
  sink_.attach(std::move(other));
  return true;
}

void SnapshotCopies::on_ready(std::uint32_t) {
  for (int n = 0; n < 64 && guardian_.valid(); ++n) {
    AgentPacket packet;
    iovec data{&packet, sizeof packet};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message{};
    message.msg_iov = &data;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = ::recvmsg(guardian_.get(), &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got != sizeof packet) {
      watch_.reset();
      guardian_.reset();
      return;
    }
    os::UniqueFd file;
    const cmsghdr* const header = CMSG_FIRSTHDR(&message);
    if (header != nullptr && header->cmsg_type == SCM_RIGHTS &&
        header->cmsg_len == CMSG_LEN(sizeof(int))) {
      int descriptor = -1;
      std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
      file.reset(descriptor);
    }
    on_packet(packet, std::move(file));
  }
}

void SnapshotCopies::request_pins() {
  if (!order_ || !attach()) return;
  keep_files([](const File& one) { return !one.is_own || one.is_shared; });
  const AgentPacket packet{.kind = AgentPacketKind::kPin,
                           .round = order_->step.round,
                           .step = order_->step.step,
                           .base_round = order_->base.round,
                           .base_step = order_->base.step,
                           .hold = order_->hold};
  (void)!::send(guardian_.get(), &packet, sizeof packet, MSG_NOSIGNAL | MSG_DONTWAIT);
}

void SnapshotCopies::on_packet(const AgentPacket& packet, os::UniqueFd file) {
  const bool is_current =
      order_ && packet.step == order_->step.step && packet.round == order_->step.round;
  if (packet.kind == AgentPacketKind::kPinned && file.valid()) {
    const HeldState state{.rank = packet.rank,
                          .world_size = packet.world_size,
                          .step = packet.step,
                          .round = packet.round,
                          .digest = packet.digest};
    if (find(state.rank, state.world_size, state.step, state.round) != nullptr) return;
    files_.push_back(std::make_unique<File>(File{.state = state,
                                                 .size = packet.size,
                                                 .fd = os::MemoryFile(std::move(file)),
                                                 .is_own = true,
                                                 .is_replicated = packet.is_replicated,
                                                 .is_shared = packet.is_shared}));
    if (!packet.is_shared) return;
    note_changed();
    serve_waiting();
  } else if (packet.kind == AgentPacketKind::kEnd && is_current) {
    on_pinned(packet.count);
  } else if (packet.kind == AgentPacketKind::kAdopted && fetch_ && fetch_->is_adopting &&
             packet.step == fetch_->step && packet.rank == fetch_->sources.front().rank) {
    fetch_->is_adopting = false;
    if (packet.count == 0) {
      return end_fetch({StatusCode::kInternal, "the guardian does not keep the snapshot of rank " +
                                                   std::to_string(packet.rank)});
    }
    fetch_->sources.erase(fetch_->sources.begin());
    fetch_next();
  }
}

void SnapshotCopies::on_pinned(std::uint32_t) {
  note_changed();
  to_put_.clear();
  if (is_copied_ || order_->step.step < 0) return;  // it only releases a step, or holds one
  for (int rank = kept_.base_rank; rank < kept_.base_rank + kept_.ranks; ++rank) {
    // A worker was overwriting it: it is there again, or a newer one is reported.
    if (find(rank, kept_.world_size, order_->step.step, order_->step.round) == nullptr) {
      return retry_later();
    }
    to_put_.push_back({rank, order_->buddy});
    for (const snapshot::Buddy& one : order_->more) to_put_.push_back({rank, one});
  }
  put_next();
}

// ---- To the buddy.

void SnapshotCopies::retry_later() {
  put_.reset();
  to_put_.clear();
  retry_.arm_after(kRetryPause);
}

void SnapshotCopies::put_next() {
  if (!order_ || put_) return;
  if (to_put_.empty()) {
    if (std::find(copied_.begin(), copied_.end(), order_->step) == copied_.end()) {
      copied_.push_back(order_->step);
    }
    last_fault_.clear();
    return report();
  }
  const auto& [rank, buddy] = to_put_.front();
  const File* const file = find(rank, kept_.world_size, order_->step.step, order_->step.round);
  if (file == nullptr) return retry_later();
  put_ = Sending{.file = file, .address = buddy.address};
  send(0, buddy.address, {.kind = CopyKind::kPut, .state = file->state, .size = file->size});
}

void SnapshotCopies::put_ended(const std::string& fault) {
  if (!fault.empty()) {
    const std::string text = "the snapshots of this node are not copied to " +
                             to_put_.front().buddy.node + ": " + fault + "; it is tried again";
    if (std::exchange(last_fault_, fault) != fault) sink_.log(text);
    return retry_later();
  }
  put_.reset();
  to_put_.erase(to_put_.begin());
  put_next();
}

void SnapshotCopies::pump(Sending* sending, ConnectionId to, const std::string& address,
                          bool is_limited) {
  if (!sending->is_ready) return;
  const File& file = *sending->file;
  std::string piece;
  while (sending->at < file.size && sending->at - sending->taken < snapshot::kCopyWindow) {
    const Instant now = loop_->now();
    if (is_limited && options_.rate > 0 && now < may_send_at_) return pace_.arm(may_send_at_);
    piece.resize(static_cast<std::size_t>(
        std::min<std::uint64_t>(snapshot::kCopyPiece, file.size - sending->at)));
    const ssize_t got =
        ::pread(file.fd.get(), piece.data(), piece.size(), static_cast<off_t>(sending->at));
    if (got != static_cast<ssize_t>(piece.size())) return;
    sending->at += piece.size();
    if (is_limited && options_.rate > 0) {
      const double seconds = static_cast<double>(piece.size()) / static_cast<double>(options_.rate);
      may_send_at_ = std::max(may_send_at_, now) +
                     std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds));
    }
    send(to, address, {.kind = CopyKind::kPiece, .state = file.state, .data = piece});
  }
}

// ---- Frames.

void SnapshotCopies::send(ConnectionId to, const std::string& address, const CopyMessage& message) {
  links_.send(to, address, snapshot::encode(message));
}

void SnapshotCopies::on_frame(ConnectionId from, const std::string& address,
                              std::string_view bytes) {
  const auto message = snapshot::decode_copy(bytes);
  if (!message) return;
  const bool is_put =
      put_ && !address.empty() && address == put_->address && message->state == put_->file->state;
  const auto served = served_.find(from);
  switch (message->kind) {
    case CopyKind::kPut: return begin_receiving(from, address, *message);
    case CopyKind::kPiece: return receive(from, address, *message);
    case CopyKind::kGet: return serve(from, *message);
    case CopyKind::kMissing:
      if (fetch_ && !fetch_->sources.empty() && address == fetch_->sources.front().address) {
        end_fetch({StatusCode::kUnavailable, address + " has none: " + message->text});
      }
      return;
    case CopyKind::kDone:
      if (is_put) {
        put_ended(message->text);
      } else if (served != served_.end()) {
        served_.erase(served);
      }
      return;
    case CopyKind::kReady:
    case CopyKind::kTaken: break;
  }
  Sending* const sending = is_put ? &*put_ : served != served_.end() ? &served->second : nullptr;
  if (sending == nullptr) return;
  sending->is_ready = true;
  sending->taken = std::min(std::max(sending->taken, message->size), sending->at);
  pump(sending, from, is_put ? address : std::string(), is_put);
}

void SnapshotCopies::on_lost(const std::string& address, const Status& why) {
  if (put_ && address == put_->address) put_ended(std::string(why.message()));
  if (fetch_ && !fetch_->sources.empty() && address == fetch_->sources.front().address &&
      !fetch_->is_adopting) {
    end_fetch({StatusCode::kUnavailable, address + ": " + std::string(why.message())});
  }
}

void SnapshotCopies::on_ended(ConnectionId connection) {
  served_.erase(connection);
  waiting_.erase(connection);
  received_.erase(connection);
}

void SnapshotCopies::serve(ConnectionId from, const CopyMessage& wanted) {
  const HeldState& state = wanted.state;
  const File* const file = find(state.rank, state.world_size, state.step, state.round);
  if (file == nullptr && may_be_shared(state)) {
    waiting_[from] = {.kind = CopyKind::kGet, .state = state};
    return;
  }
  if (file == nullptr) {
    return send(from, "",
                {.kind = CopyKind::kMissing, .state = state, .text = "it is not kept any more"});
  }
  served_[from] = {.file = file};
  send(from, "", {.kind = CopyKind::kPut, .state = file->state, .size = file->size});
}

// Whether the guardian passes this state when it begins the round, which another node may have
// begun before. A node that waits for it has a limit.
bool SnapshotCopies::may_be_shared(const HeldState& state) const {
  const bool is_of_round = kept_.point.kind == ResumeKind::kReplicated &&
                           state.step == kept_.point.step && state.round == kept_.point.round;
  return is_of_round || std::any_of(held_.begin(), held_.end(), [&](const HeldState& one) {
           return one.is_replicated && one.rank == state.rank &&
                  one.world_size == state.world_size && saved(one) == saved(state);
         });
}

void SnapshotCopies::serve_waiting() {
  for (const auto& [from, wanted] : std::exchange(waiting_, {})) serve(from, wanted);
}

// ---- What arrives.

std::uint64_t SnapshotCopies::bytes() const {
  std::uint64_t used = 0;
  for (const auto& one : files_) {
    if (!one->is_own) used += one->size;
  }
  for (const auto& [connection, one] : received_) used += one.file.size;
  return used;
}

std::string SnapshotCopies::check_room(std::uint64_t size) const {
  const std::uint64_t used = bytes();
  if (options_.memory_max > 0 && used + size > options_.memory_max) {
    return "the memory for copies there (--snapshot-memory) is used";
  }
  // The limit counts for files of memory, and SIGXFSZ would end a launcher that is not of Python.
  rlimit limit{};
  if (::getrlimit(RLIMIT_FSIZE, &limit) == 0 &&
      snapshot::round_up(size, snapshot::kPage) > limit.rlim_cur) {
    return "it is larger than the launcher there may make a file (ulimit -f)";
  }
  const os::MemoryLeft memory = os::memory_left();
  if (memory.bytes >= size + kReserve) return "";
  return "it needs more memory than the " + os::bytes_text(memory.bytes) + " that are left " +
         memory.of;
}

void SnapshotCopies::begin_receiving(ConnectionId from, const std::string& address,
                                     const CopyMessage& message) {
  const HeldState& state = message.state;
  const bool is_fetched =
      fetch_ && !fetch_->sources.empty() && address == fetch_->sources.front().address &&
      state.rank == fetch_->sources.front().rank && state.step == fetch_->step &&
      state.world_size == fetch_->world_size_of_next();
  CopyMessage reply{.kind = CopyKind::kDone, .state = state};
  if (!is_fetched && !address.empty()) return;  // an answer that nothing waits for any more
  const File* const known = find(state.rank, state.world_size, state.step, state.round);
  if (!is_fetched && known != nullptr && known->state.digest == state.digest) {
    return send(from, address, reply);
  }
  received_.erase(from);  // a transfer that begins again
  reply.text = message.size < snapshot::kPage || message.size > snapshot::kBytesMax
                   ? "its size is not valid"
                   : check_room(message.size);
  Receiving receiving{.file = {.state = state, .size = message.size}, .is_fetched = is_fetched};
  receiving.file.state.is_copy = false;
  if (reply.text.empty()) {
    receiving.file.fd = os::MemoryFile(
        os::UniqueFd(::memfd_create("elastic-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING)));
    const std::uint64_t room = snapshot::round_up(message.size, snapshot::kPage);
    if (!receiving.file.fd.valid() ||
        ::ftruncate(receiving.file.fd.get(), static_cast<off_t>(room)) != 0 ||
        ::fcntl(receiving.file.fd.get(), F_ADD_SEALS, F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW) !=
            0) {
      reply.text = std::string("no file of memory can be made: ") + std::strerror(errno);
    }
  }
  if (!reply.text.empty()) {
    send(from, address, reply);
    if (is_fetched) end_fetch({StatusCode::kResourceExhausted, reply.text});
    return;
  }
  if (is_fetched) {
    fetch_limit_.arm_after(kFetchLimit + std::chrono::seconds(message.size / kFetchRateMin));
  }
  received_[from] = std::move(receiving);
  reply.kind = CopyKind::kReady;
  send(from, address, reply);
}

void SnapshotCopies::receive(ConnectionId from, const std::string& address,
                             const CopyMessage& message) {
  const auto found = received_.find(from);
  if (found == received_.end()) return;
  Receiving& receiving = found->second;
  File& file = receiving.file;
  const std::string_view data = message.data;
  std::string fault;
  if (message.state.rank != file.state.rank || message.state.step != file.state.step ||
      data.size() > file.size - receiving.at ||
      (receiving.at == 0 && data.size() < std::min<std::uint64_t>(file.size, snapshot::kPage))) {
    fault = "its bytes are not those that were announced";
  } else {
    std::string_view written = data;
    std::string first;
    if (receiving.at == 0) {
      // Of the first page only the header belongs to the snapshot.
      snapshot::Header header;
      if (snapshot::read_header(data.data(), snapshot::round_up(file.size, snapshot::kPage),
                                &header)) {
        receiving.digest = snapshot::header_digest(header);
        file.is_replicated = (header.flags & snapshot::kReplicated) != 0;
      }
      first.assign(data);
      std::fill(first.begin() + sizeof header, first.begin() + snapshot::kPage, '\0');
      written = first;
      const std::string_view rest = data.substr(snapshot::kPage);
      receiving.digest = snapshot::crc32c(receiving.digest, rest.data(), rest.size());
    } else {
      receiving.digest = snapshot::crc32c(receiving.digest, data.data(), data.size());
    }
    if (::pwrite(file.fd.get(), written.data(), written.size(), static_cast<off_t>(receiving.at)) !=
        static_cast<ssize_t>(written.size())) {
      fault = "the memory cannot be written: " + std::string(std::strerror(errno));
    }
    receiving.at += data.size();
  }
  CopyMessage reply{.kind = CopyKind::kTaken, .state = file.state, .size = receiving.at};
  const bool is_complete = fault.empty() && receiving.at == file.size;
  if (fault.empty() && !is_complete) return send(from, address, reply);
  const bool is_fetched = receiving.is_fetched;
  Receiving received = std::move(receiving);
  received_.erase(found);
  reply.kind = CopyKind::kDone;
  if (is_complete) fault = complete(std::move(received));
  reply.text = fault;
  send(from, address, reply);
  if (is_fetched && !fault.empty()) end_fetch({StatusCode::kUnavailable, fault});
}

// Returns why it is of no use.
std::string SnapshotCopies::complete(Receiving received) {
  File& file = received.file;
  if (received.digest != file.state.digest) {
    return "the bytes of " + text_of(file.state) + " are not what its digest says";
  }
  if (received.is_fetched) {
    adopt(file);
    return "";
  }
  const auto is_same = [&](const std::unique_ptr<File>& one) {
    return one->state.rank == file.state.rank && saved(one->state) == saved(file.state);
  };
  if (std::any_of(files_.begin(), files_.end(),
                  [&](const auto& one) { return is_same(one) && one->is_own; })) {
    return text_of(file.state) + " belongs to that node itself";
  }
  std::erase_if(files_, [&](const auto& one) {
    if (!is_same(one)) return false;
    std::erase_if(served_, [&](const auto& two) { return two.second.file == one.get(); });
    return true;
  });
  files_.push_back(std::make_unique<File>(std::move(file)));
  note_changed();
  return "";
}

// ---- The states of this node's ranks that other nodes have.

void SnapshotCopies::fetch(std::int64_t step, int world_size, std::vector<HeldSource> sources,
                           Done done) {
  fetch_ = Fetch{step, world_size, std::move(sources), false, std::move(done)};
  if (!attach()) return end_fetch({StatusCode::kInternal, "the guardian cannot be reached"});
  fetch_next();
}

void SnapshotCopies::cancel_fetch() {
  fetch_.reset();
  fetch_limit_.disarm();
}

void SnapshotCopies::fetch_next() {
  if (fetch_->sources.empty()) return end_fetch({});
  const HeldSource& next = fetch_->sources.front();
  fetch_limit_.arm_after(kFetchLimit);
  const int world_size = fetch_->world_size_of_next();
  if (const File* own = find(next.rank, world_size, fetch_->step, next.round)) {
    return adopt(*own);
  }
  send(0, next.address,
       {.kind = CopyKind::kGet,
        .state = {.rank = next.rank,
                  .world_size = world_size,
                  .step = fetch_->step,
                  .round = next.round}});
}

void SnapshotCopies::adopt(const File& file) {
  const AgentPacket packet{.kind = AgentPacketKind::kAdopt,
                           .rank = file.state.rank,
                           .world_size = file.state.world_size,
                           .round = file.state.round,
                           .step = file.state.step,
                           .size = file.size,
                           .digest = file.state.digest,
                           .is_shared = fetch_->sources.front().is_shared};
  iovec data{const_cast<AgentPacket*>(&packet), sizeof packet};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  const int descriptor = file.fd.get();
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  fetch_->is_adopting = true;
  const ssize_t sent = ::sendmsg(guardian_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent != static_cast<ssize_t>(sizeof packet)) {
    end_fetch({StatusCode::kInternal, "the guardian cannot be reached"});
  }
}

void SnapshotCopies::end_fetch(Status status) {
  fetch_limit_.disarm();
  if (!fetch_) return;
  const Done done = std::exchange(fetch_, std::nullopt)->done;
  done(std::move(status));
}

}  // namespace elastic::host
