#include "core/hang/stack_text.h"

#include <algorithm>
#include <optional>
#include <tuple>
#include <utility>

// Theory of operation. faulthandler writes one block for each thread, the most recent call first:
//
//   Thread 0x00007f0d7b5f4740 (most recent call first):
//     File "/app/data.py", line 41 in __getitem__
//
// The main thread was started first, so its block is the last one. The innermost frame of a file
// that belongs to the user is the place. If library frames are above it, the outermost one of them
// that has a telling name is what the user called: "in all_reduce (train.py:88)".
//
// A worker in a collective operation waits for another rank; one that is elsewhere may be the one
// that they wait for. Some calls that wait are not in torch's flight recorder: what the recorder
// tells of such a worker is less than what its stack tells, and the place says so.

#include "core/base/describe.h"
#include "core/base/text.h"

namespace elastic::core {
namespace {

struct CodeLine {
  std::string_view file;
  std::string_view line;
  std::string_view function;
};

constexpr std::size_t kFramesMax = 100;

// Parts of the path of a file that does not belong to the user.
constexpr std::string_view kLibraryPaths[] = {"/site-packages/", "/dist-packages/", "/lib/python",
                                              "<frozen "};
// Path fragments of library frames in which a worker waits for other ranks: collectives, and a
// backward pass that has hooks of DistributedDataParallel.
constexpr std::string_view kWaitingPaths[] = {"/torch/distributed/", "/torch/autograd/graph.py",
                                              "/torch/nn/parallel/distributed.py"};
// Functions of torch.distributed in which a worker waits for other ranks, and which torch's flight
// recorder does not record.
constexpr std::string_view kUnrecorded[] = {"send",
                                            "recv",
                                            "isend",
                                            "irecv",
                                            "new_group",
                                            "split_group",
                                            "_wait_batch_p2p",
                                            "_store_based_barrier",
                                            "batch_isend_irecv",
                                            "monitored_barrier",
                                            "_new_process_group_helper",
                                            "_new_group_with_tag"};
// Path fragments of the frames that run the user's script, which are left out.
constexpr std::string_view kRunnerPaths[] = {"/elastic/_warm/", "/elastic/worker/auto.py",
                                             "<frozen runpy>"};
// Functions that only call what was decorated.
constexpr std::string_view kWrappers[] = {
    "wrapper", "_fn", "inner", "_call_impl", "decorate_context", "_wrapped_call_impl"};

template <typename List>
bool contains_any(std::string_view text, const List& parts) {
  return std::any_of(std::begin(parts), std::end(parts),
                     [&](std::string_view part) { return text.find(part) != text.npos; });
}

template <typename List>
bool is_one_of(const List& names, std::string_view name) {
  return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

bool is_wrapper(std::string_view function) { return is_one_of(kWrappers, function); }

// `  File "<file>", line <line> in <function>`
std::optional<CodeLine> parse_frame(std::string_view text) {
  constexpr std::string_view kFile = "  File \"";
  constexpr std::string_view kLine = "\", line ";
  constexpr std::string_view kIn = " in ";
  if (text.substr(0, kFile.size()) != kFile) return std::nullopt;
  const std::size_t line = text.find(kLine);
  if (line == text.npos) return std::nullopt;
  const std::size_t in = text.find(kIn, line + kLine.size());
  if (in == text.npos) return std::nullopt;
  return CodeLine{text.substr(kFile.size(), line - kFile.size()),
                  text.substr(line + kLine.size(), in - line - kLine.size()),
                  text.substr(in + kIn.size())};
}

// The lines of the last block, which is the main thread's.
std::string_view main_thread(std::string_view text) {
  constexpr std::string_view kHead = "(most recent call first):\n";
  const std::size_t head = text.rfind(kHead);
  return head == text.npos ? "" : text.substr(head + kHead.size());
}

// Without the outermost frames, which run the script.
std::string_view cut_runner(std::string_view lines) {
  while (!lines.empty()) {
    const std::string_view unended = lines.substr(0, lines.size() - 1);
    const std::size_t last = unended.rfind('\n') + 1;  // 0 if there is no other line
    const auto frame = parse_frame(unended.substr(last));
    if (!frame || !contains_any(frame->file, kRunnerPaths)) break;
    lines = lines.substr(0, last);
  }
  return lines;
}

std::vector<CodeLine> parse_frames(std::string_view lines) {
  std::vector<CodeLine> frames;
  while (!lines.empty() && frames.size() < kFramesMax) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    if (const auto frame = parse_frame(lines.substr(0, end))) frames.push_back(*frame);
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return frames;
}

std::string place_of(const CodeLine& user) {
  const std::size_t slash = user.file.rfind('/');
  const std::string_view name = slash == user.file.npos ? user.file : user.file.substr(slash + 1);
  return " (" + std::string(name) + ":" + std::string(user.line) + ")";
}

// Of the innermost frame in torch.distributed; "": that is recorded, or there is none. A private
// function that is not known does what its caller asks: versions of torch have others.
std::string_view unrecorded_call(const std::vector<CodeLine>& frames) {
  for (const CodeLine& frame : frames) {
    if (frame.file.find("/torch/distributed/") == frame.file.npos) continue;
    if (is_wrapper(frame.function)) continue;
    if (is_one_of(kUnrecorded, frame.function)) return frame.function;
    if (!frame.function.starts_with("_")) return "";
  }
  return "";
}

void locate_frames(const std::vector<CodeLine>& frames, hang::StackGroup* group) {
  std::size_t user = 0;
  while (user < frames.size() && contains_any(frames[user].file, kLibraryPaths)) ++user;
  if (user == frames.size()) user = frames.size() - 1;
  std::size_t called = user;
  while (called > 0 && (called == user || is_wrapper(frames[called].function))) --called;
  for (std::size_t i = 0; i < user; ++i) {
    if (contains_any(frames[i].file, kWaitingPaths)) group->kind = hang::StackGroup::Kind::kWaiting;
  }
  const std::string_view function = frames[called].function;
  group->label = "in " + std::string(function) + place_of(frames[user]);
  const std::string_view waits = unrecorded_call({frames.begin(), frames.begin() + user});
  if (waits.empty()) return;
  if (!is_one_of(kUnrecorded, function)) {
    group->label += ", in " + std::string(waits);
  }
  group->label += ", which the flight recorder does not show";
}

bool is_uninterruptible(const WorkerEvidence& worker) { return worker.state == 'D'; }

// " (folio_wait_bit)"
std::string channel_of(const WorkerEvidence& worker) {
  const bool is_known = !worker.wait_channel.empty() && worker.wait_channel != "0";
  return is_known ? " (" + worker.wait_channel + ")" : "";
}

std::string kernel_place(const WorkerEvidence& worker) {
  if (worker.state == 'R') return "running, without a Python stack";
  if (worker.state == 'Z' || worker.state == 'X') return "ended";
  const std::string place = "in the kernel" + channel_of(worker);
  if (!is_uninterruptible(worker)) return "waiting " + place;
  return "in uninterruptible sleep " + place + " and does not answer";
}

}  // namespace

hang::StackGroup locate(const WorkerEvidence& worker) {
  hang::StackGroup group;
  group.ranks = {worker.rank};
  group.oldest = worker.step;
  const std::string_view lines = cut_runner(main_thread(worker.text));
  group.text = to_printable(lines, Lines::kMany, hang::kStackBytesMax);
  const std::vector<CodeLine> frames = parse_frames(group.text);
  if (worker.state == 'T' || worker.state == 't') {
    group.kind = hang::StackGroup::Kind::kStopped;
    group.label = worker.state == 'T' ? "stopped by a signal" : "stopped by a debugger";
  } else if (frames.empty()) {
    if (is_uninterruptible(worker)) group.kind = hang::StackGroup::Kind::kStopped;
    group.label = kernel_place(worker);
  } else {
    locate_frames(frames, &group);
    // Another thread has written the stack.
    if (is_uninterruptible(worker)) {
      group.label += ", in uninterruptible sleep in the kernel" + channel_of(worker);
    }
  }
  group.label = to_printable(group.label, Lines::kOne, hang::kLabelBytesMax);
  return group;
}

std::string describe_stacks(const std::vector<WorkerEvidence>& workers) {
  std::string text;
  for (const WorkerEvidence& worker : workers) {
    text += describe_worker(worker.rank, "");
    if (worker.step != hang::kNoStep) text += ", at step " + std::to_string(worker.step);
    text += ": " + locate(worker).label + "\n" +
            to_printable(worker.text, Lines::kMany, std::string::npos);
    if (!text.ends_with('\n')) text += '\n';
  }
  return text;
}

void StackGroups::add(hang::StackGroup group) {
  if (group.ranks.empty()) return;
  const auto [known, is_new] = index_.try_emplace({group.kind, group.label}, groups_.size());
  if (is_new) {
    groups_.push_back(std::move(group));
    return;
  }
  hang::StackGroup& same = groups_[known->second];
  same.ranks.insert(same.ranks.end(), group.ranks.begin(), group.ranks.end());
  same.oldest = std::min(same.oldest, group.oldest);
}

std::vector<hang::StackGroup> StackGroups::take() {
  index_.clear();
  std::vector<hang::StackGroup> groups = std::exchange(groups_, {});
  for (hang::StackGroup& group : groups) std::sort(group.ranks.begin(), group.ranks.end());
  std::sort(groups.begin(), groups.end(),
            [](const auto& a, const auto& b) { return a.ranks.front() < b.ranks.front(); });
  return groups;
}

std::vector<hang::StackGroup> group_stacks(const std::vector<WorkerEvidence>& workers) {
  StackGroups groups;
  for (const WorkerEvidence& worker : workers) groups.add(locate(worker));
  std::vector<hang::StackGroup> all = groups.take();
  if (all.size() <= hang::kGroupsMax) return all;
  const std::size_t kept = hang::kGroupsMax - 1;
  const std::string label = "at " + std::to_string(all.size() - kept) + " other places";
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (i >= kept)
      all[i] = {.ranks = std::move(all[i].ranks), .oldest = all[i].oldest, .label = label};
    groups.add(std::move(all[i]));
  }
  return groups.take();
}

// In this order: a rank that is stopped or does not answer; a rank that waits for no other one; the
// smallest group; the one with the fewest steps. None if that tells nothing apart: of two ranks at
// different lines, each may be the one that waits for the other, with its device.
std::int32_t find_suspect(const std::vector<hang::StackGroup>& groups) {
  const auto weight = [](const hang::StackGroup& group) {
    switch (group.kind) {
      case hang::StackGroup::Kind::kStopped: return 0;
      case hang::StackGroup::Kind::kAtWork: return 1;
      case hang::StackGroup::Kind::kWaiting: return 2;
    }
    return 2;
  };
  if (groups.size() < 2) return -1;  // all ranks are at the same place
  const auto key = [&](const hang::StackGroup& group) {
    return std::tuple(weight(group), group.ranks.size(), group.oldest);
  };
  const auto [first, last] = std::ranges::minmax_element(groups, {}, key);
  return key(*first) < key(*last) ? first->ranks.front() : -1;
}

}  // namespace elastic::core
