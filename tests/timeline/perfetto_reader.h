// Reads a rank's file of a timeline, independently of what writes it: protobuf by its wire format, and the
// fields of Perfetto's messages by their numbers in Perfetto's documentation.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace zerorun::testing {

/// The fields of a message: numbers by field, and texts or messages by field.
struct ReadMessage {
  std::map<int, std::vector<uint64_t>> numbers;
  std::map<int, std::vector<std::string>> bytes;

  uint64_t number(int field) const {
    const auto found = numbers.find(field);
    if (found == numbers.end() || found->second.size() != 1)
      throw std::runtime_error("not one number in field " + std::to_string(field));
    return found->second.front();
  }
  std::string text(int field) const {
    const auto found = bytes.find(field);
    if (found == bytes.end() || found->second.size() != 1)
      throw std::runtime_error("not one text in field " + std::to_string(field));
    return found->second.front();
  }
  bool has(int field) const { return numbers.contains(field) || bytes.contains(field); }
};

inline ReadMessage read_message(std::string_view bytes) {
  ReadMessage message;
  const auto varint = [&] {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (bytes.empty()) throw std::runtime_error("the file ends within a number");
      const auto byte = static_cast<unsigned char>(bytes.front());
      bytes.remove_prefix(1);
      value |= static_cast<uint64_t>(byte & 0x7f) << shift;
      if (byte < 0x80) return value;
    }
    throw std::runtime_error("a number of more than ten bytes");
  };
  while (!bytes.empty()) {
    const uint64_t key = varint();
    const int field = static_cast<int>(key >> 3);
    if ((key & 7) == 0) {
      message.numbers[field].push_back(varint());
    } else if ((key & 7) == 2) {
      const uint64_t size = varint();
      if (size > bytes.size()) throw std::runtime_error("the file ends within a message");
      message.bytes[field].emplace_back(bytes.substr(0, size));
      bytes.remove_prefix(size);
    } else {
      throw std::runtime_error("a field of another form");
    }
  }
  return message;
}

struct TraceTrack {
  std::string name;  // of the track, process or thread
  uint64_t parent = 0;
  bool is_process = false, is_thread = false, is_counter = false;
};

struct TraceEvent {
  enum Type { begin = 1, end = 2, instant = 3, counter = 4 };
  uint64_t time = 0;
  uint64_t track = 0;
  int type = 0;
  std::string name;
  int64_t value = 0;                         // of a counter
  std::map<std::string, int64_t> arguments;  // by name
};

struct ReadTrace {
  std::map<uint64_t, TraceTrack> tracks;
  std::vector<TraceEvent> events;         // in the order of the file
  std::map<uint64_t, uint64_t> clocks;    // of the snapshot
  uint64_t primary_clock = 0, clock = 0;  // of the snapshot, and of events
  std::map<uint64_t, size_t> packets;     // by sequence

  std::vector<TraceEvent> on(const std::string& track, int type) const {
    std::vector<TraceEvent> found;
    for (const TraceEvent& event : events) {
      if (tracks.at(event.track).name == track && event.type == type) found.push_back(event);
    }
    return found;
  }
  std::vector<TraceEvent> named(const std::string& name, int type) const {
    std::vector<TraceEvent> found;
    for (const TraceEvent& event : events) {
      if (event.name == name && event.type == type) found.push_back(event);
    }
    return found;
  }
};

inline TraceTrack read_track(const ReadMessage& description) {
  TraceTrack track;
  if (description.has(5)) track.parent = description.number(5);
  if (description.has(2)) track.name = description.text(2);
  track.is_process = description.has(3);
  track.is_thread = description.has(4);
  track.is_counter = description.has(8);
  if (track.is_process) track.name = read_message(description.text(3)).text(6);
  if (track.is_thread) track.name = read_message(description.text(4)).text(5);
  return track;
}

/// Throws if a packet refers to something that the file has not said before.
inline ReadTrace read_trace(std::string_view bytes) {
  ReadTrace trace;
  std::map<uint64_t, std::string> names, arguments;
  const ReadMessage whole = read_message(bytes);
  for (const std::string& part : whole.bytes.at(1)) {
    const ReadMessage packet = read_message(part);
    ++trace.packets[packet.number(10)];
    if (packet.has(6)) {
      const ReadMessage snapshot = read_message(packet.text(6));
      trace.primary_clock = snapshot.number(2);
      for (const std::string& reading : snapshot.bytes.at(1)) {
        const ReadMessage clock = read_message(reading);
        trace.clocks[clock.number(1)] = clock.number(2);
      }
    }
    if (packet.has(12)) {
      const ReadMessage interned = read_message(packet.text(12));
      for (const auto& [field, table] : {std::pair(2, &names), std::pair(3, &arguments)}) {
        for (const std::string& entry : interned.bytes.at(field)) {
          const ReadMessage name = read_message(entry);
          (*table)[name.number(1)] = name.text(2);
        }
      }
      trace.clock = read_message(packet.text(59)).number(58);
    }
    if (packet.has(60)) {
      const ReadMessage description = read_message(packet.text(60));
      if (!trace.tracks.emplace(description.number(1), read_track(description)).second)
        throw std::runtime_error("two tracks have one identity");
    }
    if (!packet.has(11)) continue;
    const ReadMessage what = read_message(packet.text(11));
    TraceEvent event{.time = packet.number(8),
                     .track = what.number(11),
                     .type = static_cast<int>(what.number(9)),
                     .name = {},
                     .arguments = {}};
    if (!trace.tracks.contains(event.track)) throw std::runtime_error("an event of an unknown track");
    if (what.has(10)) event.name = names.at(what.number(10));
    if (what.has(30)) event.value = static_cast<int64_t>(what.number(30));
    if (what.has(4)) {
      for (const std::string& entry : what.bytes.at(4)) {
        const ReadMessage argument = read_message(entry);
        event.arguments[arguments.at(argument.number(1))] = static_cast<int64_t>(argument.number(4));
      }
    }
    trace.events.push_back(event);
  }
  return trace;
}

/// The names of tracks with spans that have not ended. Throws if spans of a track do not nest in time.
inline std::set<std::string> check_nesting(const ReadTrace& trace) {
  std::map<uint64_t, std::vector<uint64_t>> open;  // begins by track
  std::map<uint64_t, uint64_t> last;
  for (const TraceEvent& event : trace.events) {
    if (event.type != TraceEvent::begin && event.type != TraceEvent::end) continue;
    if (event.time < last[event.track]) throw std::runtime_error("a track goes back in time");
    last[event.track] = event.time;
    if (event.type == TraceEvent::begin) {
      open[event.track].push_back(event.time);
    } else {
      if (open[event.track].empty()) throw std::runtime_error("an end without a begin");
      open[event.track].pop_back();
    }
  }
  std::set<std::string> names;
  for (const auto& [track, begins] : open) {
    if (!begins.empty()) names.insert(trace.tracks.at(track).name);
  }
  return names;
}

/// The files of a tar by name.
inline std::map<std::string, std::string> read_tar(const std::string& tar) {
  std::map<std::string, std::string> files;
  for (size_t at = 0; at + 512 <= tar.size() && tar[at] != '\0';) {
    const std::string header = tar.substr(at, 512);
    if (header.substr(257, 5) != "ustar") throw std::runtime_error("no ustar header");
    unsigned sum = 8 * ' ';
    for (size_t i = 0; i < 512; ++i) sum += i >= 148 && i < 156 ? 0 : static_cast<unsigned char>(header[i]);
    if (std::stoul(header.substr(148, 6), nullptr, 8) != sum) throw std::runtime_error("a wrong checksum");
    const size_t size = std::stoul(header.substr(124, 11), nullptr, 8);
    if (at + 512 + size > tar.size()) throw std::runtime_error("the tar ends within a file");
    files[header.c_str()] = tar.substr(at + 512, size);
    at += 512 + (size + 511) / 512 * 512;
  }
  return files;
}

}  // namespace zerorun::testing
