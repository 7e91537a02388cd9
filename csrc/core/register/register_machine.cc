#include "core/register/register_machine.h"

#include "core/register/register_machine_impl.h"

namespace elastic::reg {

template class BasicRegister<AllRules>;

}  // namespace elastic::reg
