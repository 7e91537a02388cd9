#include "core/agent/advice_questions.h"

#include <algorithm>
#include <utility>

namespace elastic::core {

bool AdviceQuestions::ask(const WorkerExited& found, Instant now) {
  if (limit_ == Duration::zero()) return false;
  const auto known = asked_.find(found.local_rank);
  if (known != asked_.end()) {
    if (known->second) known->second = found;
    return false;
  }
  asked_.emplace(found.local_rank, found);
  if (!until_) until_ = add_saturating(now, limit_);
  return true;
}

std::optional<WorkerExited> AdviceQuestions::answer(int local_rank,
                                                    const std::optional<FailureAdvice>& advice) {
  const auto known = asked_.find(local_rank);
  if (known == asked_.end() || !known->second) return std::nullopt;
  std::optional<WorkerExited> found = std::exchange(known->second, std::nullopt);
  const bool is_last = std::none_of(asked_.begin(), asked_.end(),
                                    [](const auto& one) { return one.second.has_value(); });
  if (is_last) until_.reset();
  if (!advice) return std::nullopt;
  found->advice = advice;
  return found;
}

std::vector<int> AdviceQuestions::give_up() {
  std::vector<int> open;
  for (auto& [local_rank, found] : asked_) {
    if (std::exchange(found, std::nullopt)) open.push_back(local_rank);
  }
  until_.reset();
  return open;
}

void AdviceQuestions::clear() {
  asked_.clear();
  until_.reset();
}

}  // namespace elastic::core
