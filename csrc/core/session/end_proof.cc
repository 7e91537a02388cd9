#include "core/session/end_proof.h"

namespace elastic::core {

EndProof::Step EndProof::session_began(const std::string& address) {
  is_closed_ = has_answered_ = was_refused_ = false;
  if (address == address_ && knowledge_ == Knowledge::kReached) return Step::kDrop;
  address_ = address;
  knowledge_ = address.empty() ? Knowledge::kNone : Knowledge::kTested;
  return address.empty() ? Step::kDrop : Step::kTest;
}

EndProof::Step EndProof::session_closed() {
  is_closed_ = true;
  // An unfinished test continues: if it is answered, its connection shows the end as well.
  return knowledge_ == Knowledge::kReached ? Step::kDial : Step::kNone;
}

EndProof::Step EndProof::answered() {
  if (knowledge_ == Knowledge::kTested) knowledge_ = Knowledge::kReached;
  has_answered_ = is_closed_;
  return is_closed_ ? Step::kNone : Step::kDrop;
}

EndProof::Step EndProof::refused() {
  if (knowledge_ != Knowledge::kReached || !is_closed_) return failed();
  if (has_answered_ || was_refused_) return Step::kEnded;
  was_refused_ = true;
  return Step::kAgain;
}

EndProof::Step EndProof::failed() {
  if (knowledge_ == Knowledge::kTested) knowledge_ = Knowledge::kNone;
  return Step::kDrop;
}

}  // namespace elastic::core
