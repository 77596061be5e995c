#include "device/streams.h"

namespace zerorun {

const char* name_of(Handover handover) {
  switch (handover) {
    case Handover::updated:
      return "updated";
    case Handover::released:
      return "released";
    case Handover::gathered:
      return "gathered";
    case Handover::unused:
      return "unused";
    case Handover::written:
      return "written";
    case Handover::free:
      return "free";
    case Handover::reduced:
      return "reduced";
    case Handover::measured:
      return "measured";
    case Handover::saved:
      return "saved";
    case Handover::to_host:
      return "to_host";
    case Handover::on_host:
      return "on_host";
  }
  return "?";
}

}  // namespace zerorun
