#include "core/hang/mismatch_watch.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "core/base/describe.h"
#include "core/base/text.h"
#include "core/hang/collective_text.h"
#include "core/hang/signature.h"

// Theory of operation. Ranks publish signatures of the same blocks at the same times. Those of one
// sample are compared: where the operations of a block agree and a size or type does not, ranks
// have called one operation with different tensors. Where the operations do not agree either, the
// numbers of two ranks may not count the same operations, so nothing is concluded: operations that
// differ do not complete, and are found as a hang.
//
// The work for one message is bounded: a node has few blocks, and of each block only few variants
// and few of their ranks are kept.

namespace elastic::core {
namespace {

constexpr std::size_t kBlocksKept = 4096;
constexpr std::size_t kVariantsKept = 4;
constexpr std::size_t kRanksKept = 64;  // of a variant, to name them

// nullopt: there is none, or it is of the future, and would hide those that follow.
std::optional<std::int64_t> sample_of(std::string_view text, std::int64_t wall_now) {
  const auto sample = number_of<std::int64_t>(take_field(&text));
  constexpr std::int64_t kLength = hang::kSampleSeconds * 1'000'000'000;
  return sample && *sample <= wall_now / kLength ? sample : std::nullopt;
}

std::optional<hang::BlockSignature> block_of(std::string_view line) {
  hang::BlockSignature block;
  take_field(&line);  // the sample
  const auto recorder = number_of<std::uint8_t>(take_field(&line));
  block.group = to_printable(take_field(&line), Lines::kOne, hang::kCollectiveTextMax);
  block.description = to_printable(take_field(&line), Lines::kOne, hang::kCollectiveTextMax);
  const auto first = number_of<std::uint64_t>(take_field(&line));
  block.signature = to_printable(take_field(&line), Lines::kOne, hang::kSignatureBytes);
  const bool is_valid =
      recorder && first && !block.group.empty() && block.signature.size() == hang::kSignatureBytes;
  if (!is_valid) return std::nullopt;
  block.recorder = *recorder;
  block.first = *first;
  return block;
}

bool has_size(char letter) {
  return letter != hang::kNoOperation && letter != hang::kOtherOperation;
}

const char* name_of(char letter) {
  for (const hang::SignedOperation& one : hang::kSignedOperations) {
    if (one.letter == letter) return one.name;
  }
  return "an operation";  // of a worker with another version
}

// The first operation of which only the size or type differs; nullopt: none, or the signatures are
// not of the same operations.
std::optional<std::size_t> difference(std::string_view one, std::string_view other) {
  std::optional<std::size_t> found;
  for (std::size_t at = 0; at < hang::kSignatureBytes; at += hang::kSignBytes) {
    const std::string_view left = one.substr(at, hang::kSignBytes);
    const std::string_view right = other.substr(at, hang::kSignBytes);
    if (left == right) continue;
    if (left.front() != right.front() || !has_size(left.front())) return std::nullopt;
    if (!found) found = at / hang::kSignBytes;
  }
  return found;
}

std::string who(const std::vector<std::int32_t>& ranks, std::size_t count) {
  return ranks.size() == count ? describe_ranks(ranks) : count_text(count, "rank");
}

}  // namespace

hang::NodeSignatures node_signatures(const std::vector<WorkerEvidence>& workers,
                                     std::int64_t wall_now) {
  hang::NodeSignatures node;
  for (const WorkerEvidence& worker : workers) {
    node.sample = std::max(node.sample, sample_of(worker.signatures, wall_now).value_or(0));
  }
  struct Found {
    hang::BlockSignature block;
    std::vector<std::int32_t> ranks;
    std::string members;
  };
  using Key = std::tuple<std::string, std::uint8_t, std::uint64_t, std::string>;
  std::map<Key, Found> all;
  for (const WorkerEvidence& worker : workers) {
    if (sample_of(worker.signatures, wall_now) != node.sample) continue;
    const auto members = members_of_groups(worker.groups);
    std::string_view text = worker.signatures;
    while (!text.empty()) {
      auto block = block_of(take_line(&text));
      if (!block) continue;
      Found& found = all[{block->group, block->recorder, block->first, block->signature}];
      found.ranks.push_back(worker.rank);
      const auto known = members.find(block->group);
      if (known != members.end()) found.members = known->second;
      found.block = *std::move(block);
    }
  }
  for (auto& [key, found] : all) {
    std::sort(found.ranks.begin(), found.ranks.end());
    found.block.ranks = list_ranks(found.ranks);
    if (found.block.ranks == found.members) continue;
    if (node.blocks.size() == hang::kSignaturesMax) break;
    node.blocks.push_back(std::move(found.block));
  }
  return node;
}

void MismatchWatch::add(const hang::NodeSignatures& node, Instant now) {
  if (node.sample <= sample_ && !(due_at_ && node.sample == sample_)) return;
  if (std::exchange(sample_, node.sample) != node.sample) {
    blocks_.clear();
    due_at_ = now + kSignaturesTimeout;
  }
  for (const hang::BlockSignature& one : node.blocks) {
    const Key key{one.group, one.recorder, one.first};
    if (one.signature.size() != hang::kSignatureBytes) continue;
    if (blocks_.size() >= kBlocksKept && !blocks_.contains(key)) continue;
    const std::vector<std::int32_t> ranks = ranks_in(one.ranks);
    Block& block = blocks_[key];
    block.description = one.description;
    const auto is_same = [&](const Variant& known) { return known.signature == one.signature; };
    auto variant = std::ranges::find_if(block.variants, is_same);
    if (variant == block.variants.end()) {
      if (block.variants.size() == kVariantsKept) continue;
      block.variants.push_back({one.signature, 0, {}});
      variant = std::prev(block.variants.end());
    }
    variant->count += ranks.size();
    const std::size_t kept = std::min(ranks.size(), kRanksKept - variant->ranks.size());
    variant->ranks.insert(variant->ranks.end(), ranks.begin(),
                          ranks.begin() + static_cast<std::ptrdiff_t>(kept));
  }
}

std::optional<Mismatch> MismatchWatch::compare(const Key& key, const Block& block) const {
  if (block.variants.size() < 2) return std::nullopt;
  std::vector<const Variant*> all;
  for (const Variant& variant : block.variants) all.push_back(&variant);
  std::ranges::stable_sort(all, {}, [](const Variant* one) { return one->count; });
  const Variant& most = *all.back();
  const Variant* fewest = nullptr;
  std::optional<std::size_t> at;
  for (const Variant* const variant : all) {
    const auto found =
        variant == &most ? std::nullopt : difference(variant->signature, most.signature);
    if (!found || fewest != nullptr) continue;
    fewest = variant;
    at = found;
  }
  if (fewest == nullptr) return std::nullopt;
  const auto& [group, recorder, first] = key;
  const std::string operation = std::string(name_of(most.signature[*at * hang::kSignBytes])) +
                                " #" + std::to_string(first + *at) + " of " +
                                group_label(group, block.description);
  const bool is_known = fewest->count + most.count >= kMajorityRanks && fewest->count < most.count;
  std::vector<std::int32_t> wrong = fewest->ranks;
  std::vector<std::int32_t> right = most.ranks;
  std::ranges::sort(wrong);
  std::ranges::sort(right);
  Mismatch mismatch;
  if (is_known && fewest->count == 1) mismatch.suspect = wrong.front();
  mismatch.text = who(wrong, fewest->count) + " called " + operation +
                  " with another size or type than " + who(right, most.count) +
                  ", and no error was raised: the result may be wrong";
  return mismatch;
}

std::vector<Mismatch> MismatchWatch::compare() {
  due_at_.reset();
  std::vector<Mismatch> found;
  for (const auto& [key, block] : std::exchange(blocks_, {})) {
    const std::string& group = std::get<0>(key);
    if (reported_.size() == kMismatchesMax || reported_.contains(group)) continue;
    if (auto mismatch = compare(key, block)) {
      reported_.insert(group);
      last_ = mismatch->text;
      found.push_back(*std::move(mismatch));
    }
  }
  return found;
}

void MismatchWatch::shift(Duration gap) {
  if (due_at_) *due_at_ += gap;
}

}  // namespace elastic::core
