// Which memory ZeroRun registers with NCCL: the variable ZERORUN_NCCL_REGISTER, the same on all ranks.
//
// The default is none. NCCL exchanges handles of registered memory between the ranks' threads, in collectives
// too (with NVLink SHARP at each one), and up to NCCL 2.30 such an exchange ignores an abort. So two
// communicators whose collectives the ranks start in different orders would deadlock, which collectives on
// memory that is not registered do not.
#pragma once

#include "cuda/nccl_library.h"

namespace zerorun {

enum class NcclRegistration {
  none,
  buffers,  // ncclCommRegister()
  windows,  // ncclCommWindowRegister(): symmetric memory
};

/// "none", "buffers" or "windows"
const char* name_of(NcclRegistration registration);

/// Parses a value of ZERORUN_NCCL_REGISTER; null or "" is none. Throws UserError that names the choices if it
/// is another text, or if `features` lacks what it asks for.
NcclRegistration parse_nccl_registration(const char* value, const NcclFeatures& features);

/// Returns what the environment asks for. Throws like parse_nccl_registration().
NcclRegistration nccl_registration(const NcclFeatures& features);

}  // namespace zerorun
