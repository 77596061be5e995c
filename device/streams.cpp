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
    case Handover::leaving:
      return "leaving";
    case Handover::left:
      return "left";
  }
  return "?";
}

}  // namespace zerorun
